#include "model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "parallel.h"
#include "reshard/codec/crc64.h"
#include "reshard/tensor/cast.h"

namespace charlm {
namespace {

using reshard::AxisPart;
using reshard::Bytes;
using reshard::CutEvenly;
using reshard::Replicate;
using reshard::Result;
using reshard::Shard;
using reshard::Status;

// Order of Model::parameters_.
enum { kEmbedding, kHiddenWeight, kHiddenBias, kOutputWeight, kOutputBias };

// Eight sums side by side, so that compilers vectorise it without changing the order of the sums.
float Dot(const float* a, const float* b, std::size_t n) {
  std::array<float, 8> lanes{};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  float sum = 0;
  for (; i < n; ++i) {
    sum += a[i] * b[i];
  }
  for (const float lane : lanes) {
    sum += lane;
  }
  return sum;
}

// y += factor * x
void AddScaled(float factor, const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

Status ToBfloat16(std::span<const float> from, std::span<std::uint16_t> to) {
  reshard::CastCounts counts;
  return reshard::CastElements(reshard::DType::kFloat32, std::as_bytes(from),
                               reshard::DType::kBfloat16, std::as_writable_bytes(to), counts);
}

Status Widen(std::span<const std::uint16_t> from, std::span<float> to) {
  reshard::CastCounts counts;
  return reshard::CastElements(reshard::DType::kBfloat16, std::as_bytes(from),
                               reshard::DType::kFloat32, std::as_writable_bytes(to), counts);
}

// The initial weights of a box: uniform in [-spread, spread).
std::vector<float> InitialWeights(const Parameter& parameter, std::uint64_t seed, float spread) {
  const reshard::Box& box = parameter.box;
  const std::uint64_t row_length = box.extent.back();
  const std::uint64_t name_hash = reshard::Crc64(reshard::AsBytes(parameter.name));
  std::vector<float> weights(reshard::NumElements(box));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint64_t row = box.extent.size() == 1 ? 0 : box.offset[0] + i / row_length;
    const std::uint64_t index = row * parameter.shape.back() + box.offset.back() + i % row_length;
    const auto unit = static_cast<float>(Mix(seed, name_hash, index) >> 40) * 0x1p-24F;
    weights[i] = spread * (2 * unit - 1);
  }
  return weights;
}

}  // namespace

Result<Model> Model::Create(const ModelConfig& config, const reshard::ProcessMesh& mesh,
                            reshard::ProcessGroup& world) {
  Model model;
  model.config_ = config;
  RESHARD_TRY_ASSIGN(model.dp_, AxisGroup(mesh, "dp", world));
  RESHARD_TRY_ASSIGN(model.tp_, AxisGroup(mesh, "tp", world));
  const std::uint64_t width = config.context * config.embedding;
  const float spread_in = std::sqrt(3.0F / static_cast<float>(width));
  const float spread_out = std::sqrt(3.0F / static_cast<float>(config.hidden));
  const auto add = [&](const char* name, reshard::Shape shape, reshard::Placement tp,
                       float spread) {
    return model.AddParameter(name, std::move(shape), tp, spread, mesh, world.global_rank());
  };
  RESHARD_TRY(add("embedding", {config.vocabulary, config.embedding}, Replicate(), 1));
  RESHARD_TRY(add("hidden_weight", {config.hidden, width}, Shard{0}, spread_in));
  RESHARD_TRY(add("hidden_bias", {config.hidden}, Shard{0}, 0));
  RESHARD_TRY(add("output_weight", {config.vocabulary, config.hidden}, Shard{1}, spread_out));
  RESHARD_TRY(add("output_bias", {config.vocabulary}, Replicate(), 0));

  std::size_t elements = 0;
  for (const Parameter& parameter : model.parameters_) {
    elements += parameter.value.size();
  }
  model.gradients_.resize(elements + 1);
  std::size_t begin = 0;
  for (Parameter& parameter : model.parameters_) {
    parameter.gradient = std::span(model.gradients_).subspan(begin, parameter.value.size());
    begin += parameter.value.size();
  }
  return model;
}

Status Model::AddParameter(std::string name, reshard::Shape shape, reshard::Placement tp_placement,
                           float spread, const reshard::ProcessMesh& mesh, int rank) {
  std::vector<reshard::Placement> placements;
  for (const std::string& axis : mesh.axis_names()) {
    placements.push_back(axis == "tp" ? tp_placement : Replicate());
  }
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  RESHARD_TRY_ASSIGN(const auto box, reshard::LocalBox(parameter.shape, reshard::DType::kBfloat16,
                                                       mesh, placements, rank));
  parameter.box = *box;  // every rank is in the mesh
  const std::vector<float> weights = InitialWeights(parameter, config_.seed, spread);
  parameter.owned = CutEvenly(weights.size(), static_cast<std::uint64_t>(dp_->size()),
                              static_cast<std::uint64_t>(dp_->rank()));
  const auto first = weights.begin() + static_cast<std::ptrdiff_t>(parameter.owned.offset);
  parameter.master_weights.assign(first,
                                  first + static_cast<std::ptrdiff_t>(parameter.owned.extent));
  parameter.exp_avg.resize(parameter.owned.extent);
  parameter.exp_avg_sq.resize(parameter.owned.extent);
  parameter.bfloat16.resize(weights.size());
  parameter.value.resize(weights.size());
  RESHARD_TRY(ToBfloat16(weights, parameter.bfloat16));
  RESHARD_TRY(Widen(parameter.bfloat16, parameter.value));
  parameters_.push_back(std::move(parameter));
  return reshard::OkStatus();
}

Result<double> Model::Step(const Batch& mine, std::uint64_t batch_size, std::uint64_t step,
                           double lr) {
  std::ranges::fill(gradients_, 0.0F);
  RESHARD_TRY(ForwardAndBackward(mine, 1.0F / static_cast<float>(batch_size)));
  RESHARD_TRY(SumInRankOrder(gradients_, *dp_));
  for (Parameter& parameter : parameters_) {
    UpdateOwned(parameter, step, static_cast<float>(lr));
  }
  RESHARD_TRY(ShareUpdates());
  return gradients_.back();
}

Status Model::UseParameters() {
  for (Parameter& parameter : parameters_) {
    RESHARD_TRY(Widen(parameter.bfloat16, parameter.value));
  }
  return reshard::OkStatus();
}

// Adds the gradients of `weight` times each sample's loss, and that loss.
Status Model::ForwardAndBackward(const Batch& batch, float weight) {
  const std::size_t embedding = config_.embedding;
  const std::size_t width = config_.context * embedding;
  const std::size_t units = parameters_[kHiddenBias].value.size();  // hidden units of this rank
  const std::size_t vocabulary = config_.vocabulary;
  const auto values = [&](int which) {
    return parameters_[static_cast<std::size_t>(which)].value.data();
  };
  const auto gradient = [&](int which) {
    return parameters_[static_cast<std::size_t>(which)].gradient.data();
  };
  inputs_.assign(batch.size * width, 0);
  hidden_.assign(batch.size * units, 0);
  scores_.assign(batch.size * vocabulary, 0);
  input_gradient_.assign(batch.size * width, 0);

  for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
    const float* row = values(kEmbedding) + static_cast<std::size_t>(batch.inputs[i]) * embedding;
    std::copy_n(row, embedding, inputs_.data() + i * embedding);
  }
  for (std::size_t b = 0; b < batch.size; ++b) {
    float* hidden = hidden_.data() + b * units;
    for (std::size_t h = 0; h < units; ++h) {
      const float sum = Dot(values(kHiddenWeight) + h * width, inputs_.data() + b * width, width);
      hidden[h] = std::max(sum + values(kHiddenBias)[h], 0.0F);
    }
    for (std::size_t v = 0; v < vocabulary; ++v) {
      scores_[b * vocabulary + v] = Dot(values(kOutputWeight) + v * units, hidden, units);
    }
  }
  RESHARD_TRY(SumInRankOrder(scores_, *tp_));
  ScoresToGradient(batch, weight);

  std::vector<float> hidden_gradient(units);
  for (std::size_t b = 0; b < batch.size; ++b) {
    const float* hidden = hidden_.data() + b * units;
    std::ranges::fill(hidden_gradient, 0.0F);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      const float slope = scores_[b * vocabulary + v];
      gradient(kOutputBias)[v] += slope;
      AddScaled(slope, hidden, gradient(kOutputWeight) + v * units, units);
      AddScaled(slope, values(kOutputWeight) + v * units, hidden_gradient.data(), units);
    }
    for (std::size_t h = 0; h < units; ++h) {
      if (hidden[h] > 0) {
        const float slope = hidden_gradient[h];
        gradient(kHiddenBias)[h] += slope;
        AddScaled(slope, inputs_.data() + b * width, gradient(kHiddenWeight) + h * width, width);
        AddScaled(slope, values(kHiddenWeight) + h * width, input_gradient_.data() + b * width,
                  width);
      }
    }
  }
  RESHARD_TRY(SumInRankOrder(input_gradient_, *tp_));
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
    float* row = gradient(kEmbedding) + static_cast<std::size_t>(batch.inputs[i]) * embedding;
    AddScaled(1, input_gradient_.data() + i * embedding, row, embedding);
  }
  return reshard::OkStatus();
}

// Softmax and cross entropy: scores become the gradient with respect to them.
void Model::ScoresToGradient(const Batch& batch, float weight) {
  const std::size_t vocabulary = config_.vocabulary;
  double loss = 0;
  for (std::size_t b = 0; b < batch.size; ++b) {
    const std::span<float> scores = std::span(scores_).subspan(b * vocabulary, vocabulary);
    const auto target = static_cast<std::size_t>(batch.targets[b]);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      scores[v] += parameters_[kOutputBias].value[v];
    }
    const float largest = *std::ranges::max_element(scores);
    const float target_score = scores[target] - largest;
    float sum = 0;
    for (float& score : scores) {
      score = std::exp(score - largest);
      sum += score;
    }
    loss += std::log(sum) - target_score;
    for (float& score : scores) {
      score *= weight / sum;
    }
    scores[target] -= weight;
  }
  gradients_.back() += static_cast<float>(loss * weight);
}

// AdamW (Loshchilov and Hutter, 2019, algorithm 2) on the elements whose state is kept here.
void Model::UpdateOwned(Parameter& parameter, std::uint64_t step, float lr) {
  constexpr float kBeta1 = 0.9F;
  constexpr float kBeta2 = 0.99F;
  constexpr float kDecay = 0.01F;
  const float correction1 = 1 - std::pow(kBeta1, static_cast<float>(step));
  const float correction2 = 1 - std::pow(kBeta2, static_cast<float>(step));
  const float* gradient = parameter.gradient.data() + parameter.owned.offset;
  for (std::size_t i = 0; i < parameter.owned.extent; ++i) {
    float& mean = parameter.exp_avg[i];
    float& square = parameter.exp_avg_sq[i];
    mean = kBeta1 * mean + (1 - kBeta1) * gradient[i];
    square = kBeta2 * square + (1 - kBeta2) * gradient[i] * gradient[i];
    const float direction = mean / correction1 / (std::sqrt(square / correction2) + 1e-8F);
    parameter.master_weights[i] -= lr * (direction + kDecay * parameter.master_weights[i]);
  }
}

// Rounds the updated elements and sends them to the ranks that hold the same part of the
// parameters.
Status Model::ShareUpdates() {
  std::vector<std::uint16_t> mine;
  for (const Parameter& parameter : parameters_) {
    mine.resize(mine.size() + parameter.owned.extent);
    RESHARD_TRY(ToBfloat16(parameter.master_weights, std::span(mine).last(parameter.owned.extent)));
  }
  RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, dp_->AllGather(std::as_bytes(std::span(mine))));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::byte* next = all[rank].data();
    for (Parameter& parameter : parameters_) {
      const AxisPart piece = CutEvenly(parameter.bfloat16.size(), all.size(), rank);
      std::memcpy(parameter.bfloat16.data() + piece.offset, next,
                  piece.extent * sizeof(std::uint16_t));
      next += piece.extent * sizeof(std::uint16_t);
    }
  }
  return UseParameters();
}

}  // namespace charlm
