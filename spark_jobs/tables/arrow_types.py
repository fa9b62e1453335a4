"""The Arrow types that a Delta column can hold, and conversions without loss. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_FLOAT_EXACT = {pa.int8(), pa.int16()}
_DOUBLE_EXACT = {pa.int8(), pa.int16(), pa.int32(), pa.float32()}
_MICROSECONDS = {"s", "ms", "us"}


def delta_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a Delta column for these values; None if there is none."""
    found: pa.DataType | None = None
    if kind in _INTEGER_BITS or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.date32()):
        found = kind
    elif pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        found = pa.string()
    elif pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind):
        found = pa.binary()
    elif pt.is_timestamp(kind) and kind.unit in _MICROSECONDS:
        found = pa.timestamp("us", tz="UTC" if kind.tz is not None else None)
    elif pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        found = kind
    elif pt.is_list(kind) or pt.is_large_list(kind):
        inner = delta_type(kind.value_type)
        found = None if inner is None else pa.list_(pa.field("element", inner))
    elif pt.is_struct(kind) and kind.num_fields:
        inners = [delta_type(each.type) for each in kind]
        if None not in inners:
            found = pa.struct(
                [pa.field(each.name, inner) for each, inner in zip(kind, inners, strict=True)]
            )
    elif pt.is_map(kind):
        key, item = delta_type(kind.key_type), delta_type(kind.item_type)
        found = None if key is None or item is None else pa.map_(key, item)
    return found


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether another type can hold every value of a type exactly."""
    ours = delta_type(given)
    if ours is None:
        return False
    if ours == wanted:
        return True
    if ours in _INTEGER_BITS and wanted in _INTEGER_BITS:
        return _INTEGER_BITS[ours] <= _INTEGER_BITS[wanted]
    if wanted == pa.float32():
        return ours in _FLOAT_EXACT
    if wanted == pa.float64():
        return ours in _DOUBLE_EXACT
    if pt.is_decimal128(ours) and pt.is_decimal128(wanted):
        return bool(
            ours.scale <= wanted.scale
            and ours.precision - ours.scale <= wanted.precision - wanted.scale
        )
    if pt.is_list(ours) and pt.is_list(wanted):
        return fits(ours.value_type, wanted.value_type) and wanted.value_field.nullable
    if pt.is_struct(ours) and pt.is_struct(wanted):
        names = {each.name for each in wanted}
        return all(each.name in names for each in ours) and all(
            each.nullable
            and (ours.get_field_index(each.name) < 0 or fits(ours.field(each.name).type, each.type))
            for each in wanted
        )
    if pt.is_map(ours) and pt.is_map(wanted):
        return fits(ours.key_type, wanted.key_type) and fits(ours.item_type, wanted.item_type)
    return False


def converted(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the same values in another type that fits; raises ArrowInvalid on overflow."""
    return values if values.type == wanted else values.cast(wanted)
