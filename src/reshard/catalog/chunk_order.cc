#include <algorithm>
#include <numeric>

#include "reshard/base/check.h"
#include "reshard/catalog/catalog.h"

namespace reshard {
namespace {

constexpr std::uint8_t kFirstPermutation = 2;

std::size_t Factorial(std::size_t n) {
  std::size_t out = 1;
  for (std::size_t i = 2; i <= n; ++i) {
    out *= i;
  }
  return out;
}

std::vector<std::size_t> Iota(std::size_t count) {
  std::vector<std::size_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

bool IsValidOrder(ChunkOrder order, std::size_t axes) {
  const auto number = static_cast<std::uint8_t>(order);
  return number < kFirstPermutation ||
         (axes <= kMostPermutedAxes &&
          static_cast<std::size_t>(number - kFirstPermutation) < Factorial(axes));
}

std::vector<std::size_t> AxesInFile(ChunkOrder order, std::size_t axes) {
  RESHARD_CHECK(IsValidOrder(order, axes));
  std::vector<std::size_t> left = Iota(axes);
  if (order == ChunkOrder::kRowMajor) {
    return left;
  }
  if (order == ChunkOrder::kColumnMajor) {
    std::reverse(left.begin(), left.end());
    return left;
  }
  // The rank in the factorial number system: its digits choose among the axes that are left.
  std::size_t rank = static_cast<std::uint8_t>(order) - kFirstPermutation;
  std::vector<std::size_t> out;
  out.reserve(axes);
  while (!left.empty()) {
    const std::size_t turn = Factorial(left.size() - 1);
    const auto at = left.begin() + static_cast<std::ptrdiff_t>(rank / turn);
    rank %= turn;
    out.push_back(*at);
    left.erase(at);
  }
  return out;
}

std::optional<ChunkOrder> OrderOf(std::span<const std::size_t> axes) {
  std::vector<std::size_t> left = Iota(axes.size());
  if (!std::is_permutation(axes.begin(), axes.end(), left.begin(), left.end())) {
    return std::nullopt;
  }
  if (std::is_sorted(axes.begin(), axes.end())) {
    return ChunkOrder::kRowMajor;
  }
  if (std::is_sorted(axes.rbegin(), axes.rend())) {
    return ChunkOrder::kColumnMajor;
  }
  if (axes.size() > kMostPermutedAxes) {
    return std::nullopt;
  }
  std::size_t rank = 0;
  for (const std::size_t axis : axes) {
    const auto at = std::find(left.begin(), left.end(), axis);
    rank += static_cast<std::size_t>(at - left.begin()) * Factorial(left.size() - 1);
    left.erase(at);
  }
  return static_cast<ChunkOrder>(kFirstPermutation + rank);
}

}  // namespace reshard
