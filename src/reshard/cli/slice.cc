#include "reshard/cli/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "reshard/catalog/catalog.h"
#include "reshard/cli/text.h"
#include "reshard/tensor/strided.h"

namespace reshard::cli {
namespace {

/// Indices of which so many bytes apart are read one by one.
constexpr std::uint64_t kFarBytes = 2 * kBlockBytes;

tl::unexpected<Error> BadSlice(std::string_view text, const std::string& what) {
  return MakeError(
      ErrorCode::kInvalidArgument, "BAD_SLICE",
      fmt::format("[{}]: {}\nwrite slices as NumPy does: w[5], w[0:4, ::2], w[..., -1]",
                  Printable(text), what));
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

/// A number, cut to what fits; nothing when it is none.
std::optional<std::int64_t> ParseNumber(std::string_view text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  std::int64_t number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (text.empty() || text.front() == '-' || end != last || error == std::errc::invalid_argument) {
    return std::nullopt;
  }
  number = error == std::errc::result_out_of_range ? kMost : std::min(number, kMost);
  return negative ? -number : number;
}

std::vector<std::string_view> Split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(by);
    parts.push_back(Trim(text.substr(0, at)));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

/// Reads one slice text against the axes it meets.
class SliceParser {
 public:
  SliceParser(std::string_view text, std::span<const std::uint64_t> shape)
      : text_(text), shape_(shape) {}

  Result<std::vector<AxisSlice>> Run() {
    std::vector<std::string_view> parts = Split(text_, ',');
    if (parts.size() > 1 && parts.back().empty()) {
      parts.pop_back();  // "5," is the tuple (5,)
    }
    const auto dots = static_cast<std::size_t>(std::count(parts.begin(), parts.end(), "..."));
    if (dots > 1) {
      return BadSlice(text_, "'...' may stand once");
    }
    if (parts.size() - dots > shape_.size()) {
      return BadSlice(
          text_, fmt::format("too many indices: the tensor has {}, {} are given",
                             shape_.size() == 1 ? "1 axis" : fmt::format("{} axes", shape_.size()),
                             parts.size() - dots));
    }
    std::vector<AxisSlice> out;
    for (const std::string_view part : parts) {
      if (part == "...") {
        for (std::size_t left = shape_.size() - (parts.size() - 1); left > 0; --left) {
          out.push_back({0, 1, shape_[out.size()], false});
        }
        continue;
      }
      RESHARD_TRY_ASSIGN(const AxisSlice axis, ParseAxis(part, out.size()));
      out.push_back(axis);
    }
    while (out.size() < shape_.size()) {
      out.push_back({0, 1, shape_[out.size()], false});
    }
    return out;
  }

 private:
  Result<AxisSlice> ParseAxis(std::string_view part, std::size_t axis) const {
    const std::vector<std::string_view> bounds = Split(part, ':');
    std::vector<std::optional<std::int64_t>> numbers;
    for (const std::string_view bound : bounds) {
      numbers.push_back(ParseNumber(bound));
      const bool may_be_empty = bounds.size() > 1;
      if (!numbers.back() && !(bound.empty() && may_be_empty)) {
        return BadSlice(text_, fmt::format("'{}' is no integer, range or '...'", Printable(part)));
      }
    }
    if (bounds.size() > 3) {
      return BadSlice(text_, fmt::format("'{}' has more than START:STOP:STEP", Printable(part)));
    }
    const auto size = static_cast<std::int64_t>(shape_[axis]);
    if (bounds.size() == 1) {
      return Index(*numbers[0], size, axis);
    }
    const std::int64_t step = numbers.size() == 3 ? numbers[2].value_or(1) : 1;
    if (step == 0) {
      return BadSlice(text_, "the step of a range cannot be 0");
    }
    return Range(numbers[0], numbers[1], step, size);
  }

  Result<AxisSlice> Index(std::int64_t index, std::int64_t size, std::size_t axis) const {
    if (index < -size || index >= size) {
      return BadSlice(text_, fmt::format("index {} is out of bounds for axis {} with size {}",
                                         index, axis, size));
    }
    return AxisSlice{static_cast<std::uint64_t>(index < 0 ? index + size : index), 1, 1, true};
  }

  /// Python's slice.indices.
  static AxisSlice Range(std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
                         std::int64_t step, std::int64_t size) {
    const std::int64_t low = step < 0 ? -1 : 0;
    const std::int64_t high = step < 0 ? size - 1 : size;
    const auto place = [&](std::optional<std::int64_t> bound, std::int64_t otherwise) {
      return !bound ? otherwise : std::clamp(*bound < 0 ? *bound + size : *bound, low, high);
    };
    const std::int64_t first = place(start, step < 0 ? high : low);
    const std::int64_t end = place(stop, step < 0 ? low : high);
    const std::int64_t length = step < 0 ? first - end : end - first;
    if (length <= 0) {
      return {0, 1, 0, false};
    }
    const std::int64_t stride = step < 0 ? -step : step;
    const auto count = static_cast<std::uint64_t>((length - 1) / stride + 1);
    return {static_cast<std::uint64_t>(first), count == 1 ? 1 : step, count, false};
  }

  std::string_view text_;
  std::span<const std::uint64_t> shape_;
};

std::uint64_t Stride(const AxisSlice& axis) {
  return static_cast<std::uint64_t>(axis.step < 0 ? -axis.step : axis.step);
}

std::uint64_t CoverExtent(const AxisSlice& axis) { return (axis.count - 1) * Stride(axis) + 1; }

/// Divides one slice.
class Divider {
 public:
  Divider(std::uint64_t item_bytes, std::uint64_t most_bytes,
          const std::function<Status(const std::vector<AxisSlice>&)>& visit)
      : item_bytes_(item_bytes), most_bytes_(most_bytes), visit_(visit) {}

  Status Divide(std::vector<AxisSlice>& slice) {
    std::uint64_t bytes = item_bytes_;  // of the cover of the inner axes
    std::size_t axis = slice.size();    // the outermost with more than one index
    std::uint64_t inner = 0;            // bytes of one index of it
    bool far = false;
    for (std::size_t a = slice.size(); a-- > 0;) {
      if (slice[a].count > 1) {
        axis = a;
        inner = bytes;
        far = far || (slice[a].step != 1 && Stride(slice[a]) * bytes >= kFarBytes);
      }
      bytes *= CoverExtent(slice[a]);
    }
    if (axis == slice.size() || (bytes <= most_bytes_ && !far)) {
      return visit_(slice);
    }
    const std::uint64_t group =
        far || inner > most_bytes_ ? 1 : (most_bytes_ / inner - 1) / Stride(slice[axis]) + 1;
    const AxisSlice whole = slice[axis];
    for (std::uint64_t at = 0; at < whole.count; at += group) {
      const std::uint64_t count = std::min(group, whole.count - at);
      slice[axis].start =
          whole.start + static_cast<std::uint64_t>(static_cast<std::int64_t>(at) * whole.step);
      slice[axis].count = count;
      slice[axis].step = count == 1 ? 1 : whole.step;
      RESHARD_TRY(Divide(slice));
    }
    slice[axis] = whole;
    return OkStatus();
  }

 private:
  std::uint64_t item_bytes_;
  std::uint64_t most_bytes_;
  const std::function<Status(const std::vector<AxisSlice>&)>& visit_;
};

}  // namespace

Result<std::vector<AxisSlice>> ParseSlice(std::string_view text,
                                          std::span<const std::uint64_t> shape) {
  return SliceParser(text, shape).Run();
}

std::vector<AxisSlice> WholeSlice(std::span<const std::uint64_t> shape) {
  std::vector<AxisSlice> out;
  for (const std::uint64_t size : shape) {
    out.push_back({0, 1, size, false});
  }
  return out;
}

Shape ShapeOf(const std::vector<AxisSlice>& slice) {
  Shape shape;
  for (const AxisSlice& axis : slice) {
    if (!axis.drop) {
      shape.push_back(axis.count);
    }
  }
  return shape;
}

Box CoverOf(const std::vector<AxisSlice>& slice) {
  Box box;
  for (const AxisSlice& axis : slice) {
    const std::uint64_t extent = CoverExtent(axis);
    box.offset.push_back(axis.step < 0 ? axis.start - (extent - 1) : axis.start);
    box.extent.push_back(extent);
  }
  return box;
}

Status ForEachPart(const std::vector<AxisSlice>& slice, std::uint64_t item_bytes,
                   std::uint64_t most_bytes,
                   const std::function<Status(const std::vector<AxisSlice>&)>& visit) {
  const bool empty = std::any_of(slice.begin(), slice.end(),
                                 [](const AxisSlice& axis) { return axis.count == 0; });
  std::vector<AxisSlice> rest = slice;
  return empty ? OkStatus() : Divider(item_bytes, most_bytes, visit).Divide(rest);
}

void PickFromCover(const std::vector<AxisSlice>& slice, std::uint32_t item_bytes,
                   const std::byte* cover, std::byte* out) {
  const Box box = CoverOf(slice);
  std::vector<std::int64_t> strides = DenseStrideBytes(box.extent, item_bytes);
  Shape counts;
  for (std::size_t a = 0; a < slice.size(); ++a) {
    cover += static_cast<std::int64_t>(slice[a].start - box.offset[a]) * strides[a];
    strides[a] *= slice[a].step;
    counts.push_back(slice[a].count);
  }
  RunCopy(MakeCopyNest(counts, item_bytes, strides, DenseStrideBytes(counts, item_bytes)), cover,
          out);
}

}  // namespace reshard::cli
