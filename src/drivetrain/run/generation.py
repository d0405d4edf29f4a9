"""Text that a run's networks go on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.data.json_lines import json_object
from drivetrain.data.text_tokens import TextTokens
from drivetrain.data.tokenizers import content_of
from drivetrain.engine.placement import replicas
from drivetrain.loop.sampling import Sampling
from drivetrain.loop.task import Task
from drivetrain.run.finished import FinishedRun, Weights, open_finished, run_tokens
from drivetrain.runtime.group import Group
from drivetrain.runtime.mistakes import returned
from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.text import printable, shortened
from drivetrain.tasks.language_model.task import LanguageModelTask

_PROMPTS = (".txt", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is asked of a run: `count` texts for each prompt, drawn by `seed`. `tokenizer` is a path, or `bytes`, where
    it is not to be the training data's."""

    sampling: Sampling
    seed: int = 0
    count: int = 1
    tokenizer: str | None = None
    commit: str | None = None
    weights: Weights | None = None


def generate_run(run: Path, prompts: Iterable[str], asked: Generation) -> Iterator[dict[str, Any]]:
    """What the newest commit, or the named one, makes of each prompt, one after the other: `prompt`, `number` (of the
    texts for this prompt, from 0), `text`, and what else the task says. A text follows from the commit, the prompt,
    its number and the seed, whatever is asked beside it.

    Raises Failure: 64 where the task generates nothing, 66 where run, commit or tokenizer are missing.
    """
    if asked.count < 1:
        raise Failure(Exit.BAD_COMMAND, f"--count {asked.count}", "one or more")
    finished = open_finished(run, asked.commit, asked.weights)
    task = finished.task
    if type(task).generate is Task.generate:
        cause = f"{run} is a run of task {type(task).__name__}, which generates no text"
        raise Failure(Exit.BAD_COMMAND, cause, "name the run of a language model, or give the task a method `generate`")
    if isinstance(task, LanguageModelTask):
        task.text_tokens = _chosen(finished.recipe, task, asked.tokenizer)
    elif asked.tokenizer is not None:
        cause = f"--tokenizer: the task {type(task).__name__} has its own"
        raise Failure(Exit.BAD_COMMAND, cause, "leave it out")
    return _generated(finished, prompts, asked)


def _generated(finished: FinishedRun, prompts: Iterable[str], asked: Generation) -> Iterator[dict[str, Any]]:
    engine, task = finished.engine(replicas(Group())), finished.task
    with engine.evaluating() as networks:
        for prompt in prompts:
            place = _place(prompt)
            for number in range(asked.count):
                # By the prompt itself and not by its place: what stands beside it changes nothing.
                seed_generators(finished.device, mix(asked.seed, place, number))
                said = task.generate(networks, prompt, asked.sampling)
                if not isinstance(said, Mapping) or not isinstance(said.get("text"), str):
                    cause = f"{type(task).__name__}.generate gives {shortened(printable(repr(said)), 80)}"
                    raise returned(task.generate, cause, "return a dict with `text`")
                yield {"prompt": prompt, "number": number, **said}


def _place(prompt: str) -> int:
    """A prompt's place in the seeds' path."""
    try:
        return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    except UnicodeEncodeError as error:  # bytes of a command line that are no text
        raise Failure(Exit.BAD_COMMAND, f"the prompt {prompt!r} is no UTF-8", "give it as UTF-8") from error


def _chosen(recipe: Recipe, task: LanguageModelTask, tokenizer: str | None) -> TextTokens:
    """The tokenizer that is named, or that of the training data."""
    if tokenizer is not None:
        return TextTokens(content_of(tokenizer))
    try:
        return run_tokens(recipe, task)
    except Failure as failure:
        told = failure.outcome
        raise Failure(told.code, told.cause, "name it: --tokenizer FILE, or bytes", **told.where) from None


def prompts_of(file: Path) -> Iterator[str]:
    """The prompts of a file: each line of a .txt that is not blank, or `prompt` of each line of a .jsonl.

    Raises Failure: 64 for another kind of file, 66 where it cannot be read, 65 with FILE:LINE for what is no prompt.
    """
    if file.suffix not in _PROMPTS:
        raise Failure(Exit.BAD_COMMAND, f"--file {file}", f"prompts are in {' or '.join(_PROMPTS)} files")
    try:
        with file.open("rb") as lines:
            yield from prompts_in(lines, str(file), as_json=file.suffix == ".jsonl")
    except OSError as error:
        raise Failure(Exit.INPUT_MISSING, f"{file}: {error.strerror}", "name a file of prompts") from error


def prompts_in(lines: Iterable[bytes], name: str, *, as_json: bool = False) -> Iterator[str]:
    """The prompts in lines that are not blank; `name` is what messages call them. Raises Failure(65) as above."""
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            prompt = json_object(line)["prompt"] if as_json else line.decode().rstrip("\r\n")
            if not isinstance(prompt, str):
                raise ValueError(f"`prompt` is {json.dumps(prompt)[:80]}, no text")
        except KeyError:
            raise _bad(f"{name}:{number}", "it has no `prompt`") from None
        except (ValueError, RecursionError) as error:
            raise _bad(f"{name}:{number}", str(error)) from error
        yield prompt


def _bad(place: str, why: str) -> Failure:
    return Failure(Exit.BAD_DATA, f"{place}: {why}", "mend or remove it", file=place)
