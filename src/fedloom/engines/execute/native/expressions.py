"""Elementwise operations as C expressions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import fx

from .arrays import Unsupported

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.bool: "uint8_t",
}
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGICAL = {"logical_and": "&&", "logical_or": "||", "bitwise_and": "&", "bitwise_or": "|"}
CALLED = {  # functions of math.h
    **{name: name for name in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "erf")},
    **{name: name for name in ("sin", "cos", "floor", "ceil")},
    "abs": "fabs",
}
WRITTEN = {
    "neg": "(-{0})",
    "relu": "({0} <= 0 ? 0 : {0})",
    "reciprocal": "(1 / {0})",
    "sigmoid": "(1 / (1 + exp{f}(-{0})))",
    "rsqrt": "(1 / sqrt{f}({0}))",
    "sign": "(({0} > 0) - ({0} < 0))",
    "maximum": "({0} >= {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} <= {1} || {0} != {0} ? {0} : {1})",
    "clone": "{0}",
    "_to_copy": "{0}",
}
POINTWISE = {
    *(*BINARY, *COMPARED, *LOGICAL, *CALLED, *WRITTEN),
    *("where", "clamp", "clamp_min", "pow", "logical_not", "bitwise_not"),
}
ARGUMENTS = {"clone": 1, "_to_copy": 1}


class Operand(NamedTuple):
    """An operand: a C variable with its type, or a constant (with a type, or a plain Python
    number)."""

    name: str | None
    kind: torch.dtype | None
    value: Any = None

    def as_(self, kind: torch.dtype) -> str:
        if self.name is None:
            return literal(self.value, kind)
        if self.kind == kind:
            return self.name
        return f"({self.name} != 0)" if kind == torch.bool else f"(({TYPES[kind]}){self.name})"


def literal(value: Any, kind: torch.dtype) -> str:
    if kind == torch.bool:
        return "1" if value else "0"
    if not kind.is_floating_point:
        return f"{int(value)}LL"
    value = float(value)
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else ("-" if value < 0 else "") + "INFINITY"
    return f"({value!r}{'f' if kind == torch.float32 else ''})"


def name_of(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    own = getattr(node.target, "namespace", "aten") == "aten"
    return packet.__name__ if packet is not None and own else str(node.target)


def operands(node: fx.Node) -> list[Any]:
    return list(node.args[: ARGUMENTS.get(name_of(node), 3)])


def expression(node: fx.Node, args: list[Operand]) -> str:
    """The C expression of an operation on these operands."""
    name, kind = name_of(node), node.meta["val"].dtype
    if kind not in TYPES:
        raise Unsupported(f"numbers of type {kind}")
    more = {k: v for k, v in node.kwargs.items() if k in ("alpha", "rounding_mode")}
    if more.get("rounding_mode") is not None:
        raise Unsupported(f"{name} that rounds")
    f = "f" if kind == torch.float32 else ""
    if name in BINARY:
        if kind == torch.bool and name != "mul":
            raise Unsupported(f"{name} of truth values")
        a, b = (x.as_(kind) for x in args[:2])
        b = b if more.get("alpha", 1) == 1 else f"{literal(more['alpha'], kind)} * {b}"
        return f"({a} {BINARY[name]} {b})"
    if name in COMPARED:
        vals: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:2]]
        a, b = (x.as_(torch.result_type(*vals)) for x in args[:2])
        return f"({a} {COMPARED[name]} {b})"
    if name in LOGICAL:
        within = torch.bool if name.startswith("logical") else kind
        a, b = (x.as_(within) for x in args[:2])
        return f"({a} {LOGICAL[name]} {b})"
    if name in ("logical_not", "bitwise_not"):
        if name == "bitwise_not" and kind != torch.bool:
            raise Unsupported("bits of whole numbers")
        return f"(!{args[0].as_(torch.bool)})"
    if name == "where":
        return f"({args[0].as_(torch.bool)} ? {args[1].as_(kind)} : {args[2].as_(kind)})"
    if name in ("clamp", "clamp_min"):
        return _clamped(args, kind)
    if name == "pow":
        return _power(args, kind, f)
    typed = [x.as_(kind) for x in args]
    if name in CALLED:
        if not kind.is_floating_point:
            raise Unsupported(f"{name} of whole numbers")
        return f"{CALLED[name]}{f}({typed[0]})"
    return WRITTEN[name].format(*typed, f=f)


def _clamped(args: list[Operand], kind: torch.dtype) -> str:
    text = args[0].as_(kind)
    for bound, sign in zip(args[1:], "<>", strict=False):
        if bound.name is not None or bound.value is not None:
            limit = bound.as_(kind)
            text = f"({text} {sign} {limit} ? {limit} : {text})"
    return text


def _power(args: list[Operand], kind: torch.dtype, f: str) -> str:
    a, by = args[0].as_(kind), args[1]
    if by.name is None and by.value in (1, 2, 3):
        return "(" + " * ".join([a] * int(by.value)) + ")"
    if not kind.is_floating_point:
        raise Unsupported("powers of whole numbers")
    if by.name is None and by.value == 0.5:
        return f"sqrt{f}({a})"
    return f"pow{f}({a}, {by.as_(kind)})"
