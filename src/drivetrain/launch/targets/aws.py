"""What the AWS targets share: clients, requests checked against the service's own model, and what refusals mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from drivetrain.launch.patience import followed
from drivetrain.launch.targets.recipe import Container, Text, Word
from drivetrain.launch.targets.remote import Refused, away
from drivetrain.spec.check import shown
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import nothing

_BUSY = re.compile(
    r"Throttl|TooManyRequests|RequestLimit|ServiceUnavailable|InternalError|InternalFailure|ServerException"
)
_POLL = 2.0  # seconds between two looks at the logs
_TYPES: Mapping[str, tuple[type, ...]] = {
    "structure": (Mapping,),
    "map": (Mapping,),
    "list": (list, tuple),
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(("integer", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
}


@dataclass(frozen=True, kw_only=True)
class AwsTarget(Container):
    """A service of AWS; credentials are those of AWS's own tools."""

    region: Annotated[Word | None, nothing("null: that of the profile or the environment")] = None
    profile: Annotated[Word | None, nothing("of ~/.aws/config; null: the environment decides")] = None
    endpoint: Annotated[Text | None, nothing("the service's URL; null: the region's own")] = None


class AwsService:
    """One AWS service, as one target's settings reach it. Nothing is asked before the first call."""

    def __init__(self, service: str, settings: AwsTarget) -> None:
        self._service = service
        self._settings = settings
        self._client: Any = None

    def __call__(self, operation: str, **request: Any) -> dict[str, Any]:
        """The answer to one call. Raises Failure: 69 where none comes in time, 66 without credentials, Refused (78)."""
        exceptions = _botocore("botocore.exceptions")
        try:
            return getattr(self._connected(), operation)(**request)
        except exceptions.ClientError as error:
            raise self._refusal(operation, error.response) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
            raise Failure(Exit.INPUT_MISSING, f"{self._service}: {error}", "run `aws configure`") from error
        except (exceptions.NoRegionError, exceptions.ParamValidationError) as error:
            raise Failure(Exit.BAD_RECIPE, f"{self._service}: {error}", "set the target's region") from error
        except exceptions.BotoCoreError as error:
            raise away(f"{self._service}: {error}") from error

    def pages(self, operation: str, **request: Any) -> Iterator[dict[str, Any]]:
        """All pages of an answer that ends with `nextToken` or `NextToken`."""
        more: dict[str, str] = {}
        while True:
            answer = self(operation, **request, **more)
            yield answer
            more = {name: answer[name] for name in ("nextToken", "NextToken") if answer.get(name)}
            if not more:
                return

    def events(self, group: str, stream: str, read: dict[str, str | None]) -> Iterator[str]:
        """Lines of a stream of CloudWatch, from where `read` says on, which is moved; none where it is not there."""
        while True:
            token = read.get(stream)
            since = {"nextToken": token} if token else {}
            try:
                answer = self("get_log_events", logGroupName=group, logStreamName=stream, startFromHead=True, **since)
            except Refused as refused:
                if refused.word == "ResourceNotFoundException":
                    return
                raise
            for event in answer["events"]:
                yield event["message"]
            # CloudWatch has no last page: at the end it answers with the token that it was given.
            if answer["nextForwardToken"] == token:
                return
            read[stream] = answer["nextForwardToken"]

    def followed(
        self, group: str, streams: Callable[[], Sequence[str]], ended: Callable[[], bool] | None, every: float = _POLL
    ) -> Iterator[str]:
        """Lines of CloudWatch, stream by stream, until the job has `ended`, or for None those that are there now;
        `streams` says which there are by now."""
        read: dict[str, str | None] = {}

        def new() -> Iterator[str]:
            for stream in streams():
                yield from self.events(group, stream, read)

        return followed(ended, new, every)

    def _connected(self) -> Any:
        if self._client is None:
            settings = self._settings
            limits = {"connect_timeout": settings.timeout, "read_timeout": settings.timeout}
            # A request whose answer is lost must not be sent again unseen.
            once = {"total_max_attempts": 1}
            config = _botocore("botocore.config").Config(**limits, retries=once)
            session = _botocore("botocore.session").Session(profile=settings.profile)
            where = {"region_name": settings.region, "endpoint_url": settings.endpoint}
            self._client = session.create_client(self._service, config=config, **where)
        return self._client

    def _refusal(self, operation: str, response: Mapping[str, Any]) -> Failure:
        word = str(response.get("Error", {}).get("Code", "?"))
        cause = f"{self._service}: {operation}: {word}: {response.get('Error', {}).get('Message', '')}"
        if _BUSY.search(word) or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return away(cause)
        return Refused(cause, word)


def require_valid(target: str, service: str, operation: str, request: Mapping[str, Any]) -> None:
    """Raises Failure(78) with all that the service's own model finds wrong with a request, without asking it.

    Beyond what AWS's clients check (names, types, what is missing) it goes by choices, patterns, lengths and ranges;
    the few patterns that Python cannot read are left to the service.
    """
    model = _botocore("botocore.session").get_session().get_service_model(service)
    if wrong := "; ".join(mistakes(model.operation_model(operation).input_shape, request)):
        raise Failure(Exit.BAD_RECIPE, f"target {target}: {operation}: {wrong}", "mend the target's settings")


def mistakes(shape: Any, value: Any, path: str = "") -> Iterator[str]:
    """What is wrong with a value that is to have a shape of botocore's, each with its place."""
    kind, limits = shape.type_name, shape.metadata
    if not _is(value, kind):
        yield f"{path} is a {kind} (got {shown(value)})"
        return
    if kind == "structure":
        yield from _in_structure(shape, value, path)
    elif kind == "list":
        for number, item in enumerate(value):
            yield from mistakes(shape.member, item, f"{path}[{number}]")
    elif kind == "map":
        for name, item in value.items():
            yield from mistakes(shape.key, name, f"{path}, a key")
            yield from mistakes(shape.value, item, f"{path}.{name}")
    elif kind == "string":
        yield from _in_text(shape, value, path)
    what, size = "is", value
    if kind not in ("integer", "long", "float", "double"):
        what, size = "has a length of", len(value) if hasattr(value, "__len__") else 0
    if "min" in limits and size < limits["min"]:
        yield f"{path} {what} at least {limits['min']} (got {size})"
    if "max" in limits and size > limits["max"]:
        yield f"{path} {what} at most {limits['max']} (got {size})"


def _is(value: object, kind: str) -> bool:
    # To Python a bool is an int, to AWS it is not.
    wanted = _TYPES.get(kind)
    return wanted is None or (isinstance(value, wanted) and (kind == "boolean" or not isinstance(value, bool)))


def _in_structure(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in shape.required_members:
        if name not in value:
            yield f"{_below(path, name)} is missing"
    for name, item in value.items():
        if name not in shape.members:
            yield f"{_below(path, name)} is unknown"
        else:
            yield from mistakes(shape.members[name], item, _below(path, name))


def _in_text(shape: Any, value: str, path: str) -> Iterator[str]:
    choices: Sequence[str] = getattr(shape, "enum", ())
    if choices and value not in choices:
        few = ", ".join(choices) if len(choices) <= 8 else f"one of {len(choices)} words"
        yield f"{path} is {few} (got {shown(value)})"
    if pattern := shape.metadata.get("pattern"):
        try:
            fits = re.fullmatch(pattern, value)
        except re.error:  # written for another language
            return
        if not fits:
            yield f"{path} matches {pattern} (got {shown(value)})"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _botocore(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        cause = "botocore is not installed"
        raise Failure(Exit.INPUT_MISSING, cause, "pip install 'drivetrain[aws]'") from error
