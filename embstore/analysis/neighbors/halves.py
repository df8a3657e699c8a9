"""float16 read as float32 inside compiled loops, a whole vector register at a time where the processor can.

Numba knows no float16 on a CPU, so the kernels hold its bits, int16, and turn each into float32 as they use it. Numba's
cache of compiled loops does not look into this file: change it, and the files that import it must change too.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic


def _converts_in_hardware() -> bool:
    asked = (getattr(config, "CPU_NAME", None), getattr(config, "CPU_FEATURES", None))
    if asked not in ((None, None), ("host", None)):  # compiled for another processor
        return False
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return bool(llvmlite.binding.get_host_cpu_features().get("f16c", False))


def _by_instruction(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())


def _by_arithmetic(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Shift exponent and mantissa into place, and scale: exact, zero and subnormal numbers too."""
    integer, real = ir.IntType(32), ir.FloatType()
    wide = builder.shl(builder.sext(arguments[0], integer), integer(13))
    bits = builder.and_(wide, integer(0x8FFFE000))  # the sign, extended, is bit 31 too
    scaled = builder.fmul(builder.bitcast(bits, real), real(2.0**112))
    exponent = builder.and_(arguments[0], ir.IntType(16)(0x7C00))
    unlike = builder.icmp_signed("==", exponent, ir.IntType(16)(0x7C00))
    special = builder.bitcast(builder.or_(bits, integer(0x7F800000)), real)  # infinite, or NaN
    return builder.select(unlike, special, scaled)


def _converter(convert: Any) -> Any:
    @intrinsic
    def float_of_half(typing_context, bits):  # type: ignore[no-untyped-def]
        return types.float32(types.int16), convert

    return float_of_half


by_arithmetic = _converter(_by_arithmetic)
float_of_half = _converter(_by_instruction) if _converts_in_hardware() else by_arithmetic
