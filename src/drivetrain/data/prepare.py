"""Token files from documents: many processes tokenize, one writes, in order.

What is finished lies in a folder `NAME.preparing`: tokens, lengths of documents, and a journal that says after which
task they stand. A task counts once its line is in the journal, so a killed command goes on after the last one. Output
appears by rename when it is whole, the manifest last.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from drivetrain.data.documents import TokenizeJob, tasks_left
from drivetrain.data.fingerprint import file_digest
from drivetrain.data.indexed import beside, read_manifest, write_megatron, write_own
from drivetrain.data.inputs import Input, check_unchanged
from drivetrain.data.lifeline import end_with
from drivetrain.data.tokenization import Encoding, TokenizedDocuments, encoding, tokenize
from drivetrain.data.tokenizers import Tokenizer, open_tokenizer
from drivetrain.data.unfinished import LENGTHS, MANIFEST, TOKENS, Stand, UnfinishedWork, open_private
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder, write_json, write_private

__all__ = ["Encoding", "Format", "Preparation", "Report", "Stand", "encoding", "prepare"]

Format = Literal["drivetrain", "megatron"]

_INDEX, _TOKENIZER = "index", "tokenizer.json"


@dataclass(frozen=True)
class Preparation:
    """What to write from what. `skip_bad` is how many bad lines are passed over."""

    name: Path
    inputs: tuple[Input, ...]
    encoding: Encoding
    format: Format = "drivetrain"
    skip_bad: int = 0
    workers: int = 1


Report = Callable[[Stand], None]


def prepare(asked: Preparation, report: Report = lambda stand: None) -> dict[str, Any]:
    """Write the token file, or go on where a killed command was; returns its manifest.

    The bytes depend on the inputs and the encoding alone. Raises Failure(65) where an input is malformed, a token is
    beyond the vocabulary or nothing is left, 73 where another file has the name, 76 where unfinished work of that name
    is of other inputs or settings, 85 where another process is at it.
    """
    plan = _plan(asked)
    folder = beside(asked.name, ".preparing")
    if ready := _ready(asked.name, folder, plan):
        return ready
    try:
        asked.name.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder}: {error.strerror}", "choose another place for --to") from error
    try:
        with UnfinishedWork(folder, plan, asked.inputs, asked.skip_bad) as work:
            if not (folder / MANIFEST).is_file():
                _tokenize(asked, work, report)
                _finish(asked, work, folder, plan)
            _publish(asked.name, folder)
    except OSError as error:
        raise Failure(Exit.STORAGE, f"{folder}: {error}", "the same command goes on from there") from error
    return read_manifest(asked.name)


@contextmanager
def _pool(asked: Preparation) -> Iterator[Callable[[TokenizeJob], Future[TokenizedDocuments]]]:
    """Something that does tasks: this process alone, or several."""
    how = asked.encoding
    if asked.workers <= 1:
        tokenizer = open_tokenizer(how.tokenizer)

        def at_once(task: TokenizeJob) -> Future[TokenizedDocuments]:
            future: Future[TokenizedDocuments] = Future()
            future.set_result(tokenize(task, how, tokenizer))
            return future

        yield at_once
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["drivetrain.data.prepare"])
    pool = ProcessPoolExecutor(asked.workers, context, initializer=_open_worker, initargs=(how, os.getpid()))
    try:
        yield lambda task: pool.submit(_work, task)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _tokenize(asked: Preparation, work: UnfinishedWork, report: Report) -> None:
    """Do what is left, at most a few tasks ahead of what is written."""
    stand = work.stand
    left = tasks_left(asked.inputs, asked.encoding.field, stand.tasks, (stand.input, stand.lines))
    ahead: deque[tuple[int, Future[TokenizedDocuments]]] = deque()
    report(work.stand)
    with work.kept(), _pool(asked) as submit:
        while True:
            for task in islice(left, 2 * asked.workers - len(ahead)):
                ahead.append((task.cost, submit(task)))  # not the task, which may hold data
            if not ahead:
                break
            cost, future = ahead.popleft()
            try:
                # In the order of the tasks, whichever worker is done first: the journal counts them.
                work.add(future.result(), cost)
            except BrokenProcessPool as error:
                hint = "look for a killed process (memory?); the same command goes on, fewer --workers take less"
                raise Failure(Exit.INTERNAL, "a worker died", hint) from error
            report(work.stand)


_how: Encoding  # of a worker process
_tokenizer: Tokenizer


def _open_worker(how: Encoding, command: int) -> None:
    global _how, _tokenizer
    # Ctrl-C reaches every process of the terminal; the command alone decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(command)
    _how, _tokenizer = how, open_tokenizer(how.tokenizer)


def _work(task: TokenizeJob) -> TokenizedDocuments:
    return tokenize(task, _how, _tokenizer)


def _plan(asked: Preparation) -> dict[str, Any]:
    """What decides the bytes."""
    how = asked.encoding
    return {
        "version": 1,
        "tokenizer": open_tokenizer(how.tokenizer).digest,
        "vocabulary": how.vocabulary,
        "field": how.field,
        "eod": how.eod,
        "dtype": how.dtype,
        "format": asked.format,
        "inputs": _identity(asked.inputs),
    }


def _identity(inputs: tuple[Input, ...]) -> str:
    digest = hashlib.sha256()
    for source in inputs:
        digest.update(json.dumps(source.identity).encode())
    return digest.hexdigest()


def _finish(asked: Preparation, work: UnfinishedWork, folder: Path, plan: dict[str, Any]) -> None:
    """Write index, tokenizer and manifest beside the tokens. Raises Failure(65) where there are none."""
    stand, how = work.stand, asked.encoding
    check_unchanged(asked.inputs)
    if not stand.tokens:
        cause = f"{len(asked.inputs)} files, {stand.empty} empty documents, {len(stand.bad)} bad lines: not one token"
        raise Failure(Exit.BAD_DATA, cause, "look at the inputs and at --field")
    write_index = write_megatron if asked.format == "megatron" else write_own
    with open_private(folder / _INDEX) as file:
        file.truncate(0)  # a killed command may have left a part of it
        write_index(folder / LENGTHS, how.dtype, file)
        file.flush()
        os.fsync(file.fileno())
    digests = {TOKENS: work.digest.hexdigest(), _INDEX: file_digest(folder / _INDEX)}
    if how.tokenizer is not None:
        write_private(folder / _TOKENIZER, how.tokenizer)
        digests[_TOKENIZER] = plan["tokenizer"]
    suffixes = _suffixes(asked.format)
    files = {}
    for name, digest in digests.items():
        files[suffixes[name]] = {"size": (folder / name).stat().st_size, "sha256": digest}
    inputs = [_record(source, stand.digests.get(number)) for number, source in enumerate(asked.inputs)]
    bad = [{"file": path, "line": line, "why": why} for path, line, why in stand.bad]
    counts = {"tokens": stand.tokens, "documents": stand.documents, "empty": stand.empty, "largest": stand.largest}
    manifest = {"prepared": 1, **counts, **plan, "plan": plan["inputs"], "files": files, "inputs": inputs, "bad": bad}
    write_json(folder / MANIFEST, manifest)


def _record(source: Input, digest: str | None) -> dict[str, Any]:
    """An input in the manifest."""
    if source.hub:
        return {"path": source.path, **source.hub.record}
    held = {"changed_ns": source.changed} if digest is None else {"sha256": digest}
    return {"path": source.path, "size": source.size, **held}


def _suffixes(format_: str) -> dict[str, str]:
    """What each file in the folder becomes, the manifest last."""
    index = ".idx" if format_ == "megatron" else ".documents"
    return {TOKENS: ".bin", _INDEX: index, _TOKENIZER: ".tokenizer.json", MANIFEST: ".json"}


def _publish(name: Path, folder: Path) -> None:
    """Move what is whole to its names. A command that was killed while it did this does the rest."""
    format_ = json.loads((folder / MANIFEST).read_text())["format"]
    # The manifest is the last: as long as it is in the folder, the next start knows that renames are left to do.
    for inner, suffix in _suffixes(format_).items():
        if (folder / inner).exists():
            os.replace(folder / inner, beside(name, suffix))
    sync_folder(name.absolute().parent)
    shutil.rmtree(folder)


def _ready(name: Path, folder: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest where this very file is there already. Raises Failure(73) where another one is."""
    if folder.is_dir() and (folder / MANIFEST).is_file():
        return None  # killed between renames
    taken = [suffix for suffix in (*_suffixes("").values(), ".idx") if beside(name, suffix).exists()]
    if not taken:
        return None
    if ".json" in taken:
        manifest = read_manifest(name)
        if {**manifest, "inputs": manifest.get("plan")}.items() >= plan.items():
            shutil.rmtree(folder, ignore_errors=True)  # killed after the last rename
            return manifest
    cause = f"{beside(name, taken[0])} is there already, from other inputs or settings"
    raise Failure(Exit.CANNOT_CREATE, cause, "choose another name, or remove it")
