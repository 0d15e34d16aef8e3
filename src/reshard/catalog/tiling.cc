#include "reshard/catalog/tiling.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace reshard {
namespace {

// Arithmetic modulo the Mersenne prime 2^61 - 1.
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

std::uint64_t Reduce(std::uint64_t value) {
  value = (value & kPrime) + (value >> 61);
  return value >= kPrime ? value - kPrime : value;
}

std::uint64_t Multiply(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return Reduce((static_cast<std::uint64_t>(product) & kPrime) +
                static_cast<std::uint64_t>(product >> 61));
}

std::uint64_t Subtract(std::uint64_t a, std::uint64_t b) { return Reduce(a + kPrime - b); }

std::uint64_t DrawKey() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

/// A random function of (axis, coordinate): the key is not known to whoever made the boxes.
std::uint64_t Weight(std::uint64_t key, std::size_t axis, std::uint64_t coordinate) {
  std::uint64_t x = key + (axis + 1) * 0x9e3779b97f4a7c15ULL;
  for (const std::uint64_t part : {coordinate, key >> 7}) {  // two rounds of a 64-bit finalizer
    x ^= part;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
  }
  return Reduce(x);
}

std::uint64_t BoxWeight(std::uint64_t key, BoxView box) {
  std::uint64_t product = 1;
  for (std::size_t a = 0; a < box.axes(); ++a) {
    if (box.extent[a] == 0) {
      return 0;
    }
    product = Multiply(product, Subtract(Weight(key, a, box.offset[a] + box.extent[a]),
                                         Weight(key, a, box.offset[a])));
  }
  return product;
}

bool Meet(BoxView a, BoxView b) {
  for (std::size_t i = 0; i < a.axes(); ++i) {
    const std::uint64_t begin = std::max(a.offset[i], b.offset[i]);
    const std::uint64_t end = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]);
    if (begin >= end) {
      return false;
    }
  }
  return true;
}

/// The axis with the most distinct starts.
std::size_t BestAxis(std::span<const BoxView> boxes) {
  std::size_t best = 0;
  std::size_t most = 0;
  const std::size_t axes = boxes.empty() ? 0 : boxes[0].axes();
  std::vector<std::uint64_t> starts(boxes.size());
  for (std::size_t a = 0; a < axes; ++a) {
    std::transform(boxes.begin(), boxes.end(), starts.begin(),
                   [a](const BoxView& box) { return box.offset[a]; });
    std::sort(starts.begin(), starts.end());
    const auto distinct =
        static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
    if (distinct > most) {
      most = distinct;
      best = a;
    }
  }
  return best;
}

}  // namespace

bool TilesExactly(BoxView region, std::span<const BoxView> boxes) {
  static const std::uint64_t key = DrawKey();
  std::uint64_t sum = 0;
  for (const BoxView& box : boxes) {
    sum = Reduce(sum + BoxWeight(key, box));
  }
  return sum == BoxWeight(key, region);
}

TilingFault FindTilingFault(std::span<const BoxView> boxes) {
  const std::size_t axis = BestAxis(boxes);
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0);
  const bool scalar = boxes.empty() || boxes[0].axes() == 0;
  if (!scalar) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return boxes[x].offset[axis] < boxes[y].offset[axis];
    });
  }
  std::vector<std::size_t> active;
  for (const std::size_t i : order) {
    if (!scalar) {
      std::erase_if(active, [&](std::size_t j) {
        return boxes[j].offset[axis] + boxes[j].extent[axis] <= boxes[i].offset[axis];
      });
    }
    for (const std::size_t j : active) {
      if (Meet(boxes[i], boxes[j])) {
        return {std::min(i, j), std::max(i, j), true};
      }
    }
    active.push_back(i);
  }
  return {};
}

BoxIndex::BoxIndex(std::vector<BoxView> boxes) : boxes_(std::move(boxes)) {
  constexpr std::size_t kFew = 32;
  if (boxes_.size() <= kFew || boxes_[0].axes() == 0) {
    return;
  }
  axis_ = BestAxis(boxes_);
  by_start_.resize(boxes_.size());
  std::iota(by_start_.begin(), by_start_.end(), 0);
  std::stable_sort(by_start_.begin(), by_start_.end(), [this](std::size_t x, std::size_t y) {
    return boxes_[x].offset[axis_] < boxes_[y].offset[axis_];
  });
  max_end_.reserve(boxes_.size());
  std::uint64_t end = 0;
  for (const std::size_t i : by_start_) {
    end = std::max(end, boxes_[i].offset[axis_] + boxes_[i].extent[axis_]);
    max_end_.push_back(end);
  }
}

void BoxIndex::ForEachMeeting(BoxView wanted, const std::function<void(std::size_t)>& visit) const {
  if (by_start_.empty()) {
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      if (Meet(boxes_[i], wanted)) {
        visit(i);
      }
    }
    return;
  }
  const std::uint64_t begin = wanted.offset[axis_];
  const std::uint64_t end = begin + wanted.extent[axis_];
  // max_end_ is monotone: everything before the first entry that ends after `begin` is out.
  const auto first = std::upper_bound(max_end_.begin(), max_end_.end(), begin) - max_end_.begin();
  std::vector<std::size_t> found;
  for (auto i = static_cast<std::size_t>(first); i < by_start_.size(); ++i) {
    const BoxView& box = boxes_[by_start_[i]];
    if (box.offset[axis_] >= end) {
      break;
    }
    if (Meet(box, wanted)) {
      found.push_back(by_start_[i]);
    }
  }
  std::sort(found.begin(), found.end());
  std::for_each(found.begin(), found.end(), visit);
}

}  // namespace reshard
