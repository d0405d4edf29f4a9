"""Reads TorchEasyRec's pipeline configurations, in protobuf's text format or as JSON."""

from __future__ import annotations

import re

from drivetrain.spec.importing.easyrec.columns import columns_of
from drivetrain.spec.importing.easyrec.data import arrays_of, fg_mode_of, streamed, take_data
from drivetrain.spec.importing.easyrec.edits import edit
from drivetrain.spec.importing.easyrec.features import FeatureTaker
from drivetrain.spec.importing.easyrec.groups import read_groups
from drivetrain.spec.importing.easyrec.labels import take_best
from drivetrain.spec.importing.easyrec.model import NEAREST, NO_RANKING, ModelTaker
from drivetrain.spec.importing.easyrec.reader import Facts, Reader
from drivetrain.spec.importing.easyrec.schema import ROOT
from drivetrain.spec.importing.easyrec.table import FIELDS, said_of
from drivetrain.spec.importing.easyrec.training import accumulation_of, take_training
from drivetrain.spec.importing.easyrec.tree import Binder, Node, camel, from_json
from drivetrain.spec.importing.findings import Findings, Source, Taken, Told
from drivetrain.spec.importing.json_text import NotJsonError, json_tree
from drivetrain.spec.prototext import Message, NotProtoTextError, read_message
from drivetrain.spec.tree import dotted

_MARKS = (
    "train_input_path",
    "eval_input_path",
    "model_dir",
    "train_config",
    "data_config",
    "feature_configs",
    "model_config",
)


UNKNOWN = "no counterpart is known"
"""Of a field that nobody thought of."""


class EasyRec:
    """The file that TorchEasyRec gets as `--pipeline_config_path`."""

    def marks(self, text: str) -> list[str]:
        """Names of its top level that are there, as text format or JSON writes them."""
        found = []
        for mark in _MARKS:
            if re.search(rf'(?m)(^|[{{,;])\s*"?({mark}|{camel(mark)})"?\s*[:{{]', text):
                found.append(mark)
        return found

    def read(self, source: Source) -> Findings:
        """What becomes of each field. Raises Failure: 78 where it says not how long it trains, 64 for edits that do
        not fit."""
        findings = Findings(source)
        message = _parsed(source, findings)
        if message is None:
            return findings
        binder = Binder(source.name, findings.mistakes)
        root = binder.node(message, ROOT)
        for path, line, why in binder.replaced:
            findings.spared.append(Told(dotted(path), line, why))
        if findings.mistakes:
            return findings
        if source.edits:
            edit(root, source.edits)
        # After the edits: they may have made messages, and moved places in lists.
        root.name_all()
        _take_all(root, findings)
        return findings


def _parsed(source: Source, findings: Findings) -> Message | None:
    """The file as a message; None, with a mistake, where it is none."""
    try:
        if source.text.lstrip().startswith("{"):
            return from_json(json_tree(source.text, source.name, findings.mistakes), ROOT, 1)
        return read_message(source.text)
    except NotJsonError as error:
        findings.mistake("", error.line, f"no JSON: {error}")
    except NotProtoTextError as error:
        findings.mistake("", error.line, f"no text of a protobuf message: {error}")
    return None


def _take_all(root: Node, findings: Findings) -> None:
    reader = Reader(findings, Facts(fg_mode_of(root), accumulation_of(root), streamed(root)))
    model = root.node("model_config")
    kind = model.chosen("model") if model else None
    if model is None or kind is None:
        findings.mistake("model_config", root.line_of("model_config"), "names no model")
        return
    if kind in NO_RANKING:
        findings.mistake(model.key(kind), model.line_of(kind), f"has no counterpart: {NO_RANKING[kind]}")
        return
    # First: how many lanes and steps there are is asked for by the sections after it.
    take_training(reader, root)
    take_data(reader, root)
    groups = read_groups(reader, model, kind in NEAREST)
    columns = columns_of(reader, root)
    features = FeatureTaker(reader, groups, arrays_of(root))
    features.take_all(columns)
    taker = ModelTaker(reader, root, model, groups)
    taker.take(features.taken)
    take_best(reader, root, taker.labels.named, kind)
    findings.taken.insert(0, Taken(("task", "kind"), "ranking", "model_config", root.line_of("model_config")))
    # Else what a mistake kept from being read would be listed as if nobody knew it.
    if not findings.mistakes:
        _sweep(reader, root)


def _sweep(reader: Reader, root: Node) -> None:
    """What nobody has spoken of."""
    for node, name in list(reader.unsaid(root, lambda message, field: f"{message}.{field}" in FIELDS)):
        said = said_of(node.type, name)
        if said is None and node.nodes(name):
            reader.spare(node, name, "says nothing")
        elif said is None:
            reader.lose(node, name, UNKNOWN)
        elif said.lost and not (said.off and node.value(name) in said.off):
            reader.lose(node, name, said.why)
        else:
            reader.spare(node, name, said.why)
