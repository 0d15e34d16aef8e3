#include "reshard/engine/convert_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "reshard/engine/convert_state.h"
#include "reshard/engine/key_pattern.h"
#include "reshard/tensor/cast.h"

namespace reshard {
namespace {

/// Ranks are threads; more are a slip of the pen.
constexpr int kMostRanks = 4096;

template <typename... Args>
tl::unexpected<Error> BadLayout(fmt::format_string<Args...> text, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, "CONVERT_LAYOUT",
                   fmt::format(text, std::forward<Args>(args)...));
}

/// The types of real numbers that can be rounded to; those of 4 and 6 bits are not.
bool IsRounded(DType dtype) { return CanCast(dtype, DType::kFloat8E5m2); }

bool IsPacked(DType dtype) { return Info(dtype).unit_elements > 1; }

Status CheckTarget(DType dtype, const std::string& rule) {
  if (IsRounded(dtype)) {
    return OkStatus();
  }
  return MakeError(ErrorCode::kUnsupported, "CAST",
                   fmt::format("the dtype rule '{}': values are not converted to {}\nname a "
                               "floating-point type of 8 bits or more, such as bfloat16",
                               rule, Info(dtype).name));
}

std::string RuleText(const DTypeRule& rule) {
  return fmt::format("{}={}", rule.pattern, Info(rule.dtype).name);
}

std::string RuleText(const PlacementRule& rule) {
  return fmt::format("{}={}", rule.pattern, ToString(rule.placements));
}

/// A rule that decides nothing is a slip of the pen. `matched`: keys of any tensor.
tl::unexpected<Error> Unused(std::string_view kind, const std::string& rule, bool matched,
                             std::string_view but) {
  return MakeError(
      ErrorCode::kInvalidArgument, "UNUSED_RULE",
      fmt::format("the {} rule '{}' decides nothing: {}\ncorrect it or leave it out; `reshard ls` "
                  "lists keys and dtypes",
                  kind, rule, matched ? but : "no key that is converted matches it"));
}

/// The first rule that matches, or nothing.
template <typename Rule>
std::optional<std::size_t> FindRule(const std::vector<Rule>& rules, std::string_view key) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (MatchesKey(rules[i].pattern, key)) {
      return i;
    }
  }
  return std::nullopt;
}

template <typename Rule>
bool MatchesSome(const Rule& rule, const Catalog& catalog, const ConvertSelection& selection) {
  return std::any_of(selection.tensors.begin(), selection.tensors.end(), [&](TensorId tensor) {
    return MatchesKey(rule.pattern, catalog.key(tensor));
  });
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

Result<Placement> ParsePlacement(std::string_view text) {
  if (text == "replicate") {
    return Placement(Replicate{});
  }
  if (text.starts_with("shard(") && text.ends_with(")")) {
    const std::string_view number = Trim(text.substr(6, text.size() - 7));
    int axis = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), axis);
    if (parsed.ec == std::errc() && parsed.ptr == number.data() + number.size()) {
      return Placement(Shard{axis});
    }
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_PLACEMENT",
                   fmt::format("'{}' is no placement\nwrite replicate or shard(AXIS) for each axis "
                               "of the mesh, such as replicate,shard(1)",
                               text));
}

}  // namespace

Result<std::vector<Placement>> ParsePlacements(std::string_view text) {
  std::vector<Placement> out;
  for (;;) {
    const std::size_t comma = text.find(',');
    RESHARD_TRY_ASSIGN(Placement placement, ParsePlacement(Trim(text.substr(0, comma))));
    out.push_back(placement);
    if (comma == std::string_view::npos) {
      return out;
    }
    text.remove_prefix(comma + 1);
  }
}

std::string ToString(std::span<const Placement> placements) {
  std::vector<std::string> out;
  out.reserve(placements.size());
  for (const Placement& placement : placements) {
    const auto* shard = std::get_if<Shard>(&placement);
    out.push_back(shard != nullptr ? fmt::format("shard({})", shard->axis)
                  : std::holds_alternative<Replicate>(placement) ? "replicate"
                                                                 : "partial");
  }
  return fmt::format("{}", fmt::join(out, ","));
}

Result<ConvertLayout> ConvertLayout::Create(const Catalog& catalog,
                                            const ConvertSelection& selection,
                                            const LayoutOptions& options,
                                            const LayoutLimits& limits) {
  ConvertLayout out(catalog);
  RESHARD_TRY(out.ChooseDTypes(selection, options));
  RESHARD_TRY(out.ChooseRanks(selection, options, limits));
  RESHARD_TRY(out.ChooseRules(selection, options));
  out.FindIdentities(selection, limits.aliases);
  if (!limits.cut_tensors) {
    RESHARD_TRY(out.Distribute(selection, options.max_file_bytes));
  }
  RESHARD_TRY_ASSIGN(out.line_, ProcessMesh::Create({static_cast<std::uint64_t>(out.ranks_)}));
  for (const TensorId tensor : selection.tensors) {  // a fault does not depend on the rank
    RESHARD_TRY(out.Place(tensor, 0));
  }
  return out;
}

std::uint64_t ConvertLayout::num_bytes(TensorId tensor) const {
  return NumBytes(catalog_->shape(tensor), dtypes_[tensor]);
}

Status ConvertLayout::ChooseDTypes(const ConvertSelection& selection,
                                   const LayoutOptions& options) {
  if (options.dtype) {
    RESHARD_TRY(CheckTarget(*options.dtype, std::string(Info(*options.dtype).name)));
  }
  for (const DTypeRule& rule : options.dtypes) {
    if (!IsPacked(rule.dtype)) {  // naming its own type exempts a tensor from later rules
      RESHARD_TRY(CheckTarget(rule.dtype, RuleText(rule)));
    }
  }
  std::vector<bool> used(options.dtypes.size());
  for (TensorId tensor = 0; tensor < catalog_->num_tensors(); ++tensor) {
    dtypes_.push_back(catalog_->dtype(tensor));
  }
  for (const TensorId tensor : selection.tensors) {
    const DType own = catalog_->dtype(tensor);
    const auto rule = FindRule(options.dtypes, catalog_->key(tensor));
    const bool packed = IsPacked(own);
    if ((!IsRounded(own) && !packed) || (!rule && packed)) {
      continue;
    }
    const DType wanted = rule ? options.dtypes[*rule].dtype : options.dtype.value_or(own);
    if (!CanCast(own, wanted)) {
      return MakeError(
          ErrorCode::kUnsupported, "CAST",
          fmt::format("the dtype rule '{}': tensor '{}' is {}, whose values are not "
                      "converted to {}\nexclude it from the rule: put '{}={}' before",
                      RuleText(options.dtypes[*rule]), catalog_->key(tensor), Info(own).name,
                      Info(wanted).name, catalog_->key(tensor), Info(own).name));
    }
    if (rule) {
      used[*rule] = true;
    }
    dtypes_[tensor] = wanted;
    casts_ = casts_ || wanted != own;
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      const DTypeRule& rule = options.dtypes[i];
      return Unused("dtype", RuleText(rule), MatchesSome(rule, *catalog_, selection),
                    "the tensors that match it hold no floating-point values, or an earlier rule "
                    "decides");
    }
  }
  return OkStatus();
}

Status ConvertLayout::ChooseRanks(const ConvertSelection& selection, const LayoutOptions& options,
                                  const LayoutLimits& limits) {
  if (options.mesh && options.ranks != 0) {
    return BadLayout("both a mesh and a number of ranks are given\ngive one of them");
  }
  if (!options.placements.empty() && !options.mesh) {
    return BadLayout("placements are given without a mesh\nname its axes, such as dp=2,tp=4");
  }
  if (!limits.cut_tensors && (options.mesh || options.ranks != 0)) {
    return BadLayout(
        "the format stores every tensor whole in one file, so that there are no ranks to cut them "
        "over\nleave ranks and mesh out; a largest size of its files is what divides tensors "
        "among several");
  }
  if (limits.cut_tensors && options.max_file_bytes != 0) {
    return BadLayout(
        "the format has one file for each rank, whatever its size\nbound the files by the number "
        "of ranks instead");
  }
  int ranks = options.ranks;
  if (options.mesh) {
    const std::uint64_t size = options.mesh->ranks().size();
    if (size > kMostRanks) {
      return BadLayout("a mesh of {} ranks\nuse one of at most {}", size, kMostRanks);
    }
    ranks = static_cast<int>(size);
  }
  if (limits.per_rank_values || (limits.cut_tensors && !limits.skip_unsupported)) {
    RESHARD_TRY_ASSIGN(ranks, PerRankCount(*catalog_, selection, ranks));
  }
  ranks_ = std::max(1, ranks);
  return OkStatus();
}

Status ConvertLayout::ChooseRules(const ConvertSelection& selection, const LayoutOptions& options) {
  mesh_ = options.mesh;
  placements_ = options.placements;
  rules_.resize(catalog_->num_tensors());
  std::vector<bool> used(placements_.size());
  for (const TensorId tensor : selection.tensors) {
    if (const auto rule = FindRule(placements_, catalog_->key(tensor))) {
      rules_[tensor] = static_cast<std::uint32_t>(*rule) + 1;
      used[*rule] = true;
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    const PlacementRule& rule = placements_[i];
    if (rule.placements.size() != mesh_->shape().size()) {
      return MakeError(ErrorCode::kInvalidArgument, "PLACEMENT_COUNT",
                       fmt::format("the placement rule '{}' has {} placements, the mesh {} "
                                   "axes\ngive one for each axis",
                                   RuleText(rule), rule.placements.size(), mesh_->shape().size()));
    }
    if (!used[i]) {
      return Unused("placement", RuleText(rule), MatchesSome(rule, *catalog_, selection),
                    "earlier rules decide for all that match it");
    }
  }
  return OkStatus();
}

void ConvertLayout::FindIdentities(const ConvertSelection& selection, bool aliases) {
  identities_.resize(catalog_->num_tensors());
  std::map<std::tuple<TensorId, DType, std::uint32_t>, TensorId> first;
  for (const TensorId tensor : selection.tensors) {
    identities_[tensor] = tensor;
    if (aliases) {
      const std::tuple key(catalog_->alias_of(tensor), dtypes_[tensor], rules_[tensor]);
      identities_[tensor] = first.emplace(key, tensor).first->second;
    }
  }
}

/// Whole tensors in the order of their keys, a new rank where one is full.
Status ConvertLayout::Distribute(const ConvertSelection& selection, std::uint64_t max_file_bytes) {
  rank_of_.resize(catalog_->num_tensors());
  std::uint64_t filled = 0;
  int rank = 0;
  for (const TensorId tensor : selection.tensors) {
    if (identities_[tensor] != tensor) {
      rank_of_[tensor] = rank_of_[identities_[tensor]];
      continue;
    }
    const std::uint64_t bytes = num_bytes(tensor);
    if (max_file_bytes != 0 && filled != 0 &&
        bytes > max_file_bytes - std::min(filled, max_file_bytes)) {
      ++rank;
      filled = 0;
    }
    filled += bytes;
    rank_of_[tensor] = rank;
  }
  if (rank >= kMostRanks) {
    return BadLayout("files of at most {} bytes would be {}\ngive a larger size: at most {} files",
                     max_file_bytes, rank + 1, kMostRanks);
  }
  ranks_ = rank + 1;
  return OkStatus();
}

Result<std::optional<Box>> ConvertLayout::Place(TensorId tensor, int rank) const {
  const auto shape = catalog_->shape(tensor);
  if (whole()) {
    return rank_of_[tensor] == rank ? std::optional(WholeBox(shape)) : std::nullopt;
  }
  if (shape.empty()) {
    return std::optional(WholeBox(shape));
  }
  if (rules_[tensor] == 0) {
    const std::array<Placement, 1> rows = {Shard{0}};
    return LocalBox(shape, dtypes_[tensor], *line_, rows, rank);
  }
  const PlacementRule& rule = placements_[rules_[tensor] - 1];
  auto box = LocalBox(shape, dtypes_[tensor], *mesh_, rule.placements, rank);
  if (!box.ok()) {
    Error error = box.error().WithContext(fmt::format("the placement rule '{}' for tensor '{}' {}",
                                                      RuleText(rule), catalog_->key(tensor),
                                                      ToString(shape)));
    if (error.reason == "BAD_AXIS") {
      const PlacementRule before = {std::string(catalog_->key(tensor)),
                                    std::vector<Placement>(rule.placements.size(), Replicate{})};
      error.message += fmt::format(
          "\nthe first rule that matches decides: give a more specific one before it, such as '{}'",
          RuleText(before));
    }
    return tl::unexpected<Error>(std::move(error));
  }
  return box;
}

std::optional<Box> ConvertLayout::BoxOf(TensorId tensor, int rank) const {
  Result<std::optional<Box>> box = Place(tensor, rank);
  return box.ok() ? std::move(*box) : std::nullopt;  // Create has asked for each tensor
}

}  // namespace reshard
