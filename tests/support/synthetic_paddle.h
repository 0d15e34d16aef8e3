#pragma once

// Metadata as Paddle 3.3 writes it for a job of many tensors and ranks: CPython's opcodes, every
// object memoised, a text of its own for the key in each rank's entries (they come from other
// processes), batches of 1000, without frames.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/format/pickle/emitter.h"

namespace reshard::testing {

/// Writes metadata of `tensors` x `ranks` pieces; each rank has `kRows` rows of every tensor.
class SyntheticPaddle {
 public:
  static constexpr std::int64_t kRows = 64;
  static constexpr std::int64_t kColumns = 1024;

  static Bytes Metadata(std::uint64_t tensors, std::uint64_t ranks) {
    SyntheticPaddle writer(tensors, ranks);
    writer.Write();
    return std::move(writer.out_);
  }

  static std::string Key(std::uint64_t tensor) {
    return fmt::format("model.layers.{}.sub.{}.weight", tensor / 10, tensor % 10);
  }

 private:
  SyntheticPaddle(std::uint64_t tensors, std::uint64_t ranks)
      : tensors_(tensors), ranks_(ranks), emit_(out_) {}

  void Write() {
    shapes_.resize(tensors_ * ranks_);
    Object("Metadata", classes_[0], [&] {
      NewText("state_dict_metadata");
      Dict(tensors_, [&](std::uint64_t t) { Tensor(t); });
      NewText("storage_metadata");
      Dict(tensors_ * ranks_, [&](std::uint64_t i) { Entry(i % tensors_, i / tensors_); });
      NewText("flat_mapping");
      Dict(tensors_, [&](std::uint64_t t) {
        emit_.Get(keys_[t]);
        emit_.Mark();
        for (const std::string& part :
             {std::string("model"), std::string("layers"), std::to_string(t / 10),
              std::string("sub"), std::to_string(t % 10), std::string("weight")}) {
          NewText(part);
        }
        emit_.Tuple();
        emit_.Memoize();
      });
    });
    emit_.Stop();
  }

  std::uint32_t NewText(std::string_view text) {
    emit_.Text(text);
    return emit_.Memoize();
  }

  void Name(std::string_view name) {
    for (const auto& [text, number] : names_) {
      if (text == name) {
        emit_.Get(number);
        return;
      }
    }
    names_.emplace_back(name, NewText(name));
  }

  template <typename Fields>
  void Object(std::string_view name, std::int64_t& cls, const Fields& fields) {
    if (cls < 0) {
      emit_.Global("paddle.distributed.flex_checkpoint.dcp.metadata", name);
      cls = emit_.Memoize();
    } else {
      emit_.Get(static_cast<std::uint32_t>(cls));
    }
    emit_.EmptyTuple();
    emit_.NewObject();
    emit_.Memoize();
    emit_.EmptyDict();
    emit_.Memoize();
    emit_.Mark();
    fields();
    emit_.SetItems();
    emit_.Build();
  }

  template <typename Item>
  void Dict(std::uint64_t count, const Item& item) {
    emit_.EmptyDict();
    emit_.Memoize();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i % 1000 == 0) {
        emit_.Mark();
      }
      item(i);
      if (i % 1000 == 999 || i + 1 == count) {
        emit_.SetItems();
      }
    }
  }

  std::uint32_t Pair(std::int64_t a, std::int64_t b) {
    emit_.Int(a);
    emit_.Int(b);
    emit_.TupleOf(2);
    return emit_.Memoize();
  }

  void Tensor(std::uint64_t t) {
    keys_.push_back(NewText(Key(t)));
    emit_.EmptyList();
    emit_.Memoize();
    emit_.Mark();
    for (std::uint64_t r = 0; r < ranks_; ++r) {
      Object("LocalTensorMetadata", classes_[1], [&] {
        Name("global_offset");
        shapes_[t * ranks_ + r].first = Pair(static_cast<std::int64_t>(r) * kRows, 0);
        Name("local_shape");
        shapes_[t * ranks_ + r].second = Pair(kRows, kColumns);
        Name("dtype");
        Name("bfloat16");
        Name("global_shape");
        Pair(kRows * static_cast<std::int64_t>(ranks_), kColumns);
        Flat();
      });
    }
    emit_.Appends();
  }

  void Flat() {
    Name("is_flattened");
    emit_.Bool(false);
    Name("flattened_range");
    emit_.None();
  }

  void Entry(std::uint64_t t, std::uint64_t r) {
    Object("LocalTensorIndex", classes_[2], [&] {
      Name("tensor_key");
      NewText(Key(t));
      Name("global_offset");
      emit_.Get(shapes_[t * ranks_ + r].first);
      Flat();
      Name("replica_id");
      emit_.None();
      Name("local_shape");
      emit_.Get(shapes_[t * ranks_ + r].second);
    });
    if (files_.size() == r) {
      files_.push_back(NewText(fmt::format("{}_0.distcp", r)));
    } else {
      emit_.Get(files_[r]);
    }
  }

  const std::uint64_t tensors_;
  const std::uint64_t ranks_;
  Bytes out_;
  pickle::Emitter emit_;
  std::int64_t classes_[3] = {-1, -1, -1};
  std::vector<std::pair<std::string, std::uint32_t>> names_;
  std::vector<std::uint32_t> keys_;
  std::vector<std::uint32_t> files_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shapes_;  // memo numbers per piece
};

}  // namespace reshard::testing
