"""The conversations of protos/ as Markdown: services, messages and enums, with the comments of the sources.

protoc gives descriptors together with their comments; the sources are not parsed here. All of them are one
package, in which a type's name is unique, so it is its anchor as well.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from markdown_text import cell, code, escaped, table

SOURCES: Final = Path(__file__).resolve().parents[2] / "protos" / "flexo" / "v1"
_PREFIX: Final = "flexo_protos/v1"
"""As protos/generate.py calls the folder: imports in the sources name it."""
_Path = tuple[int, ...]
_SYNTAX: Final = (FileDescriptorProto.SYNTAX_FIELD_NUMBER,)


def parts() -> Mapping[str, str]:
    """What a page can ask for, by name."""
    return {"protos": "\n\n".join(text for file in files() for text in _File(file).sections())}


def files() -> Sequence[FileDescriptorProto]:
    """The descriptors of all sources, with their comments."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        arguments = ["protoc", f"-I{_PREFIX}={SOURCES}", "--include_source_info"]
        arguments += [f"--descriptor_set_out={out}"]
        arguments += [f"{_PREFIX}/{path.name}" for path in sorted(SOURCES.glob("*.proto"))]
        if protoc.main(arguments) != 0:
            sys.exit("flexo: protoc failed on protos/flexo/v1 (its message stands above)")
        return FileDescriptorSet.FromString(out.read_bytes()).file


class _File:
    """One source."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(place.path): " ".join(filter(None, (place.leading_comments, place.trailing_comments)))
            for place in file.source_code_info.location
        }

    def sections(self) -> Iterator[str]:
        """The Markdown of the file, piece by piece."""
        yield f"## {Path(self._file.name).name}"
        yield self._text(_SYNTAX)
        for i, service in enumerate(self._file.service):
            yield from self._service(service, (FileDescriptorProto.SERVICE_FIELD_NUMBER, i))
        for i, message in enumerate(self._file.message_type):
            yield from self._message(message, (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, i), "")
        for i, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, i), "")

    def _service(self, service: ServiceDescriptorProto, path: _Path) -> Iterator[str]:
        yield _heading(service.name)
        yield self._text(path)
        rows = []
        for i, method in enumerate(service.method):
            comment = self._cell((*path, ServiceDescriptorProto.METHOD_FIELD_NUMBER, i))
            asked = _stream(method.client_streaming) + _linked(method.input_type)
            answered = _stream(method.server_streaming) + _linked(method.output_type)
            rows.append((code(method.name), asked, answered, comment))
        yield table(("rpc", "takes", "answers", ""), rows)

    def _message(self, message: DescriptorProto, path: _Path, inside: str) -> Iterator[str]:
        name = inside + message.name
        yield _heading(name)
        yield self._text(path)
        rows = []
        for i, field in enumerate(message.field):
            comment = self._cell((*path, DescriptorProto.FIELD_FIELD_NUMBER, i))
            one_of = _one_of(message, field)
            rows.append((code(field.name), _type(field), str(field.number), f"{one_of} {comment}".strip()))
        yield table(("field", "type", "number", ""), rows) if rows else "No fields."
        for i, nested in enumerate(message.nested_type):
            below = (*path, DescriptorProto.NESTED_TYPE_FIELD_NUMBER, i)
            yield from self._message(nested, below, f"{name}.")
        for i, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, DescriptorProto.ENUM_TYPE_FIELD_NUMBER, i), f"{name}.")

    def _enum(self, enum: EnumDescriptorProto, path: _Path, inside: str) -> Iterator[str]:
        yield _heading(inside + enum.name)
        yield self._text(path)
        rows = (
            (
                code(value.name),
                str(value.number),
                self._cell((*path, EnumDescriptorProto.VALUE_FIELD_NUMBER, i)),
            )
            for i, value in enumerate(enum.value)
        )
        yield table(("value", "number", ""), rows)

    def _text(self, path: _Path) -> str:
        """The comment as paragraphs."""
        lines = (line.strip() for line in self._comments.get(path, "").split("\n"))
        return escaped("\n".join(lines).strip())

    def _cell(self, path: _Path) -> str:
        return cell(self._comments.get(path, ""))


def _heading(name: str) -> str:
    return f"### {name} {{#{anchor(name)}}}"


def anchor(name: str) -> str:
    """Where a type's section is on the page."""
    return name.lower().replace(".", "-")


def _linked(full_name: str) -> str:
    """ ".flexo.v1.CommandDone.Outcome" as a link."""
    name = full_name.removeprefix(".flexo.v1.")
    return f"[{code(name)}](#{anchor(name)})"


def _stream(streaming: bool) -> str:
    return "stream of " if streaming else ""


def _type(field: FieldDescriptorProto) -> str:
    many = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    optional = "optional " if field.proto3_optional else ""
    plain = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return many + optional + (_linked(field.type_name) if field.type_name else plain)


def _one_of(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Of fields that exclude each other; an optional field is alone in a group that protoc makes up."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return f"*One of {cell(message.oneof_decl[field.oneof_index].name)}.*"
