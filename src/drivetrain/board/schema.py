"""What the board answers, for programs, as OpenAPI 3.1: `python -m drivetrain.board.schema`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from drivetrain.board import answers
from drivetrain.board.guard import KEY
from drivetrain.board.routes.curves import MOST as POINTS
from drivetrain.board.routes.ledger import MOST as RECORDS
from drivetrain.board.routes.pages import OF_COMMITS
from drivetrain.board.steps import AXES
from drivetrain.spec.commands import VERBS

VERSION = "1"
"""Counted up where an answer changes its meaning or loses something; new addresses and new names leave it."""
_REF = "#/components/schemas/{model}"
_BINARY = "application/octet-stream"
_EVENTS = "text/event-stream"
_DESCRIBED = ConfigDict(use_attribute_docstrings=True)
_Schema: TypeAlias = Mapping[str, Any]

_TEXT: _Schema = {"type": "string"}
_TEXTS: _Schema = {"type": "array", "items": _TEXT}
_NUMBER: _Schema = {"type": "number"}
_PLACE: _Schema = {"type": "integer", "minimum": 0}
_BY: _Schema = {"enum": list(AXES), "default": AXES[0]}
_TRUTH: _Schema = {"type": "boolean"}
_COMMAND: Mapping[str, _Schema] = {"verb": {"enum": list(VERBS)}, "argument": {"type": "string", "default": ""}}


class _Untitled(GenerateJsonSchema):
    """Without titles of fields, which only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True)
class Call:
    """One thing that can be asked. `answers` are the types of its JSON, `media` is the kind of what is none. `query`
    and `body` are schemas by name: of the address's query, and of the JSON object that is sent."""

    what: str
    answers: tuple[type, ...] = ()
    query: Mapping[str, _Schema] = field(default_factory=dict)
    body: Mapping[str, _Schema] = field(default_factory=dict)
    status: int = 200
    media: str = ""


def _act(*words: str) -> Mapping[str, _Schema]:
    return {"act": {"enum": list(words)}}


_KEYS = {
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "drivetrain-board-PORT",
        "description": "set by the address that `drivetrain board` prints",
    },
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": KEY,
        "description": "in the page at that address, as `board-key`; with it goes the header Origin",
    },
}
_RUN = "/api/runs/{id}"
CALLS: Mapping[str, Call] = {
    "GET /api/runs": Call(
        "All runs, or those that a filter lets through", (answers.Table,), {"filter": _TEXT, "column": _TEXTS}
    ),
    "GET /api/keys": Call("What filters and columns may name", (answers.Keys,)),
    "GET /api/compare": Call("Runs side by side", (answers.Compared,), {"run": _TEXTS, "by": _BY}),
    "GET /api/events": Call(
        "Events `runs`: by run its records, groups of steps and state, or null where it is gone; first of all, then of "
        "those that changed",
        media=_EVENTS,
    ),
    f"GET {_RUN}": Call("A run as a whole", (answers.Detail,)),
    f"PATCH {_RUN}": Call(
        "Name, tag, hide or archive it",
        (answers.Line,),
        body={"title": _TEXT, "tags": _TEXTS, "hidden": _TRUTH, "archived": _TRUTH},
    ),
    f"DELETE {_RUN}": Call(
        "Remove its directory; `confirm` is the folder's name", (answers.Trashed,), body={"confirm": _TEXT}
    ),
    f"GET {_RUN}/curves": Call(
        "Curves, in binary: CurvesHead says how",
        query={"n": _TEXTS, "by": _BY, "lo": _NUMBER, "hi": _NUMBER, "points": {"type": "integer", "maximum": POINTS}},
        media=_BINARY,
    ),
    f"GET {_RUN}/marks": Call("What happened beside the curves", (answers.Marks,)),
    f"GET {_RUN}/record": Call(
        "The record at a byte of the ledger, or of the last step up to a place of an axis",
        (answers.RecordTold,),
        {"offset": _PLACE, "at": _NUMBER, "by": _BY},
    ),
    f"GET {_RUN}/records": Call(
        "Records, the newest first, from before a byte of the ledger",
        (answers.Records,),
        {"kind": _TEXTS, "search": _TEXT, "limit": {"type": "integer", "maximum": RECORDS}, "before": _PLACE},
    ),
    f"GET {_RUN}/time": Call("Where time and memory went", (answers.Timeline,)),
    f"GET {_RUN}/recipe": Call(
        "The recipe; or what differs from another run's", (answers.Recipe, answers.RecipesDiffer), {"other": _TEXT}
    ),
    f"GET {_RUN}/commits": Call("Its commits", (answers.Commits,)),
    f"POST {_RUN}/commits/{{commit}}": Call("Do something with a commit", (answers.Said,), body=_act(*OF_COMMITS)),
    f"GET {_RUN}/data": Call("What was read so far", (answers.Data,)),
    f"POST {_RUN}/samples": Call(
        "Sixteen samples, decoded by the recipe's own code", (answers.Samples,), body={"position": _PLACE}
    ),
    f"GET {_RUN}/gallery": Call("What the task has shown", (answers.Gallery,)),
    f"GET {_RUN}/file": Call("A file of gallery, logs or profile", query={"path": _TEXT}, media=_BINARY),
    f"GET {_RUN}/logs": Call(
        "The logs there are; of one that is named a part",
        (answers.Logs, answers.LogPart),
        {"name": _TEXT, "end": _PLACE},
    ),
    f"GET {_RUN}/plan": Call("What was planned, and what it came to", (answers.Plan,)),
    f"GET {_RUN}/verify": Call("What the verification has come to", (answers.Verification,)),
    f"POST {_RUN}/verify": Call("Begin to verify", (answers.Verification,), status=202),
    f"GET {_RUN}/commands": Call("What it was told", (answers.Commands,)),
    f"POST {_RUN}/commands": Call("What a command would do", (answers.Prepared,), body=_COMMAND, status=201),
    f"PUT {_RUN}/commands/{{command}}": Call(
        "Give a prepared command, once however often it is sent", (answers.CommandTold,), body=_COMMAND
    ),
    "GET /api/jobs": Call("Jobs that were submitted from here", (answers.Jobs,)),
    "GET /api/jobs/{job}/log": Call("The end of a job's log", (answers.Text,)),
    "POST /api/jobs/{job}": Call("Cancel a job, or submit it again", (answers.Job,), body=_act("cancel", "requeue")),
}
"""By method and path."""


def board_schema() -> dict[str, Any]:
    """The OpenAPI document. Names that are not in it may be there: another version has added them."""
    paths: dict[str, dict[str, Any]] = {}
    for asked, call in CALLS.items():
        method, path = asked.split()
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Drivetrain board", "version": VERSION},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": _KEYS},
    }


def _operation(method: str, path: str, call: Call) -> dict[str, Any]:
    parameters = []
    for name in re.findall(r"{(\w+)}", path):
        parameters.append({"name": name, "in": "path", "required": True, "schema": _TEXT})
    for name, schema in call.query.items():
        parameters.append({"name": name, "in": "query", "schema": schema})
    told: dict[str, Any] = {"summary": call.what, "parameters": parameters}
    if method != "GET":
        sent = {"type": "object", "properties": call.body}
        told["requestBody"] = {"content": {"application/json": {"schema": sent}}}
    told["responses"] = {
        str(call.status): {"description": "what was asked for", "content": _content(call)},
        "default": {"description": "what is wrong", "content": {"application/json": {"schema": _ref(answers.Refused)}}},
    }
    # Reading takes the cookie alone.
    needed = {"session": []} if method == "GET" else {"session": [], "key": []}
    return told | {"security": [needed]}


def _content(call: Call) -> dict[str, Any]:
    if call.media:
        return {call.media: {}}
    kinds = list(map(_ref, call.answers))
    return {"application/json": {"schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(model=kind.__name__)}


def _schemas() -> dict[str, dict[str, Any]]:
    """pydantic's schema of each type, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in vars(answers).items():
        if not is_typeddict(kind) or kind.__module__ != answers.__name__:
            continue
        kind.__pydantic_config__ = _DESCRIBED
        schema = TypeAdapter(kind).json_schema(ref_template=_REF, schema_generator=_Untitled)
        for part in ("$defs", "title"):
            schema.pop(part, None)
        # Sentences under the fields of a base are not seen by pydantic.
        for base in kind.__orig_bases__:
            if base.__name__ in found:
                schema["properties"] |= found[base.__name__]["properties"]
        found[name] = schema
    return found


if __name__ == "__main__":
    print(json.dumps(board_schema(), indent=1))
