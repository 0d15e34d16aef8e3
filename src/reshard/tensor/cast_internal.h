#pragma once

// The loops behind CastElements (cast.h). Two ways: the pairs that big tensors take have a loop of
// their own that compilers vectorise; all others go through the bits of a double, which holds every
// value of every narrower type exactly, a block at a time, so that N sources and M targets need
// N + M functions and round once.

#include <cstddef>
#include <cstdint>

#include "reshard/tensor/dtype.h"

namespace reshard::cast_internal {

/// Elements per block; a block of doubles stays in the L1 cache.
inline constexpr std::size_t kBlock = 1024;

/// Elements to the bits of doubles that round to every narrower type as the elements do. NaN become
/// quiet, float64 ones on the way back.
using DecodeBlock = void (*)(const std::byte* src, std::uint64_t* wide, std::size_t count);

/// The opposite, rounding; adds to `overflowed`.
using EncodeBlock = void (*)(const std::uint64_t* wide, std::byte* dst, std::size_t count,
                             std::uint64_t& overflowed);

/// One conversion of any number of elements; returns how many overflowed.
using FastCast = std::uint64_t (*)(const std::byte* src, std::byte* dst, std::size_t count);

/// Null for complex and sub-byte types.
DecodeBlock FindDecoder(DType dtype);

/// Null where the type is not a floating-point target.
EncodeBlock FindEncoder(DType dtype);

/// Null where the pair has none. 64-bit integers to float64 must take it: a double made for further
/// rounding is not the nearest one.
FastCast FindFastCast(DType from, DType to);

}  // namespace reshard::cast_internal
