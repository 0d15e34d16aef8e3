#pragma once

// A small character-level language model and its optimizer: the embeddings of the last characters,
// side by side, go through one hidden layer to the scores of the next character.
//
//   x = embedding[characters]              scores = output_weight * relu(hidden_weight * x +
//   hidden_bias)
//                                                   + output_bias
//
// Tensor parallel (mesh axis "tp"): the hidden units are cut. hidden_weight and hidden_bias lie
// along axis 0 of theirs, output_weight along axis 1, so that a rank computes a summand of all
// scores. The rest is replicated. Data parallel (mesh axis "dp"): each rank takes a part of the
// batch, and keeps the optimizer state of a part of each of its parameters: a range of the elements
// in the order of memory (ZeRO stage 1). Precision: parameters are bfloat16, master weights and
// moments float32.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"
#include "reshard/tensor/mesh.h"
#include "text.h"

namespace charlm {

struct ModelConfig {
  std::uint64_t vocabulary = 0;
  std::uint64_t context = 8;
  std::uint64_t embedding = 32;
  std::uint64_t hidden = 250;  // not a multiple of 3 or 4: shards of unequal size
  std::uint64_t seed = 1;
};

/// One parameter as this rank holds it.
struct Parameter {
  std::string name;
  reshard::Shape shape;     ///< Of the whole parameter.
  reshard::Box box;         ///< The part that this rank computes with.
  reshard::AxisPart owned;  ///< The elements of that part whose optimizer state is kept here.

  std::vector<std::uint16_t> bfloat16;  ///< The part itself.
  std::vector<float> value;             ///< The same, widened for the arithmetic.
  std::span<float> gradient;

  std::vector<float> master_weights;  ///< Of the owned elements, as all that follows.
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
};

/// The model on one rank.
class Model {
 public:
  /// Weights are a function of the seed and of each element's place in its parameter, so that every
  /// mesh starts from the same ones. Collective over `world`; the ranks of `mesh` are all of them.
  static reshard::Result<Model> Create(const ModelConfig& config, const reshard::ProcessMesh& mesh,
                                       reshard::ProcessGroup& world);

  std::vector<Parameter>& parameters() { return parameters_; }

  const ModelConfig& config() const { return config_; }

  /// The group of the ranks that see other samples and the same part of the parameters.
  reshard::ProcessGroup& dp() { return *dp_; }

  /// One step of training on this rank's part of a batch of `batch_size` samples. `step` counts
  /// from 1. Returns the mean loss over the whole batch before the step. Collective.
  reshard::Result<double> Step(const Batch& mine, std::uint64_t batch_size, std::uint64_t step,
                               double lr);

  /// Makes the model compute with what `bfloat16` holds now: after an update or a load.
  reshard::Status UseParameters();

 private:
  reshard::Status AddParameter(std::string name, reshard::Shape shape,
                               reshard::Placement tp_placement, float spread,
                               const reshard::ProcessMesh& mesh, int rank);
  reshard::Status ForwardAndBackward(const Batch& batch, float weight);
  void ScoresToGradient(const Batch& batch, float weight);
  void UpdateOwned(Parameter& parameter, std::uint64_t step, float lr);
  reshard::Status ShareUpdates();

  ModelConfig config_;
  std::unique_ptr<reshard::ProcessGroup> dp_;
  std::unique_ptr<reshard::ProcessGroup> tp_;
  std::vector<Parameter> parameters_;
  std::vector<float> gradients_;  // of all parameters, then the loss
  std::vector<float> inputs_, hidden_, scores_, input_gradient_;  // of a batch
};

}  // namespace charlm
