"""Hypothesis strategies for random messages of any protobuf type: every field as its descriptor allows."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

HOSTILE = (
    "", "t1", "t2", "job 7", "$(reboot)", "`reboot`", "; reboot", "a\nb", "\x1b[2J", "'\"", "../../passwd",
    "/tmp/x", "-rf", "%n%s", "flexo{workers=1-9}", "x" * 600, "n[1-9999]", "ALL", "\u202e", "\x00", "NaN",
)  # fmt: skip
_EDGES = [
    0,
    1,
    2,
    7,
    63,
    64,
    *(sign * 2**bits - less for bits in (31, 32, 63, 64) for sign in (1, -1) for less in (0, 1)),
]
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 12),
}
_MOST_REPEATED = 4


def messages(kind: Descriptor) -> st.SearchStrategy[Message]:
    """Strategy for messages of the type `kind`."""
    return st.deferred(lambda: _messages(kind))


def _messages(kind: Descriptor) -> st.SearchStrategy[Message]:
    @st.composite
    def draw_message(draw: st.DrawFn) -> Message:
        message = GetMessageClass(kind)()
        for field in kind.fields:
            if not draw(st.booleans()):
                continue
            value = draw(_values(field))
            if field.is_repeated:
                getattr(message, field.name).extend(value)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                getattr(message, field.name).CopyFrom(value)
            else:
                setattr(message, field.name, value)
        return message

    return draw_message()


def _values(field: FieldDescriptor) -> st.SearchStrategy[object]:
    one = _one(field)
    return st.lists(one, max_size=_MOST_REPEATED) if field.is_repeated else one


def _one(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.floats()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=64)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
    low, high = _BOUNDS[field.cpp_type]
    edges = [edge for edge in _EDGES if low <= edge <= high]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))
