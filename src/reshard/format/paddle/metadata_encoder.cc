// EncodeMetadata: the opcodes that Paddle's own pickles have, with the full field set of the newest
// release, which all releases of a flavour read.

#include <array>

#include "reshard/base/check.h"
#include "reshard/format/paddle/metadata.h"
#include "reshard/format/paddle/metadata_pickle_internal.h"
#include "reshard/format/pickle/emitter.h"

namespace reshard::paddle {
namespace {

constexpr std::size_t kBatch = 1000;  // Python's own batches

/// Memo numbers, once they have been written.
using Memo = std::optional<std::uint32_t>;

class Encoder {
 public:
  Encoder(Bytes& out, Flavour flavour)
      : emit_(out), module_(flavour == Flavour::kLegacy ? kLegacyModule : kFlexModule) {}

  void Encode(const Metadata& metadata);

 private:
  enum ClassNumber { kMetadataNumber, kTensorNumber, kIndexNumber };

  void Class(ClassNumber number, std::string_view name);
  void FieldName(Field field);
  void Numbers(std::span<const std::uint64_t> numbers);
  void Flat(const std::optional<FlatRange>& flat);
  void Description(const MetadataTensor& tensor, const Piece& piece);
  void Index(std::size_t tensor, const std::string& key, const Piece& piece);
  void Tensors(const Metadata& metadata);
  void Entries(const Metadata& metadata);
  void FlatMapping(const Metadata& metadata);

  template <typename Write>
  void Once(Memo& memo, const Write& write) {
    if (memo) {
      emit_.Get(*memo);
      return;
    }
    write();
    memo = emit_.Memoize();
  }

  /// An object with the fields that `write` leaves on the stack.
  template <typename Write>
  void Object(ClassNumber number, std::string_view name, const Write& write) {
    Class(number, name);
    emit_.EmptyTuple();
    emit_.NewObject();
    emit_.EmptyDict();
    emit_.Mark();
    write();
    emit_.SetItems();
    emit_.Build();
  }

  /// A dict: `write(i)` leaves a key and a value.
  template <typename Write>
  void Dict(std::size_t count, const Write& write) {
    emit_.EmptyDict();
    for (std::size_t i = 0; i < count; ++i) {
      if (i % kBatch == 0) {
        emit_.Mark();
      }
      write(i);
      if (i % kBatch == kBatch - 1 || i + 1 == count) {
        emit_.SetItems();
      }
    }
  }

  pickle::Emitter emit_;
  std::string_view module_;
  Memo module_memo_;
  std::array<Memo, 3> classes_;
  std::array<Memo, kFieldNames.size()> fields_;
  std::vector<Memo> keys_;
  std::vector<Memo> files_;
  std::array<Memo, 256> dtypes_;
};

void Encoder::Class(ClassNumber number, std::string_view name) {
  Once(classes_[number], [&] { emit_.Global(module_, name); });
}

void Encoder::FieldName(Field field) {
  const auto i = static_cast<std::size_t>(field);
  Once(fields_[i], [&] { emit_.Text(kFieldNames[i]); });
}

void Encoder::Numbers(std::span<const std::uint64_t> numbers) {
  if (numbers.empty()) {
    emit_.EmptyTuple();
    return;
  }
  if (numbers.size() > 3) {
    emit_.Mark();
  }
  for (const std::uint64_t number : numbers) {
    emit_.Int(static_cast<std::int64_t>(number));
  }
  if (numbers.size() > 3) {
    emit_.Tuple();
  } else {
    emit_.TupleOf(static_cast<int>(numbers.size()));
  }
}

void Encoder::Flat(const std::optional<FlatRange>& flat) {
  FieldName(Field::kIsFlattened);
  emit_.Bool(flat.has_value());
  FieldName(Field::kFlattenedRange);
  if (flat) {
    Numbers(std::array{flat->begin, flat->end});
  } else {
    emit_.None();
  }
}

void Encoder::Description(const MetadataTensor& tensor, const Piece& piece) {
  Object(kTensorNumber, kTensorClass, [&] {
    FieldName(Field::kGlobalOffset);
    Numbers(piece.global_offset);
    FieldName(Field::kLocalShape);
    Numbers(piece.local_shape);
    FieldName(Field::kDtype);
    const auto number = static_cast<std::uint8_t>(*tensor.dtype);
    Once(dtypes_[number], [&] { emit_.Text(Info(*tensor.dtype).name); });
    FieldName(Field::kGlobalShape);
    Numbers(*tensor.shape);
    Flat(piece.flat);
  });
}

void Encoder::Index(std::size_t tensor, const std::string& key, const Piece& piece) {
  Object(kIndexNumber, kIndexClass, [&] {
    FieldName(Field::kTensorKey);
    Once(keys_[tensor], [&] { emit_.Text(key); });
    FieldName(Field::kGlobalOffset);
    Numbers(piece.global_offset);
    Flat(piece.flat);
    FieldName(Field::kReplicaId);
    if (piece.replica == 0) {
      emit_.None();
    } else {
      emit_.Int(static_cast<std::int64_t>(piece.replica));
    }
    FieldName(Field::kLocalShape);
    Numbers(piece.local_shape);
  });
}

void Encoder::Tensors(const Metadata& metadata) {
  Dict(metadata.tensors.size(), [&](std::size_t t) {
    const MetadataTensor& tensor = metadata.tensors[t];
    RESHARD_CHECK(tensor.dtype && tensor.shape);
    Once(keys_[t], [&] { emit_.Text(tensor.key); });
    emit_.EmptyList();
    emit_.Mark();
    for (const Piece& piece : tensor.pieces) {
      if (piece.replica == 0) {
        Description(tensor, piece);
      }
    }
    emit_.Appends();
  });
}

void Encoder::Entries(const Metadata& metadata) {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (std::size_t t = 0; t < metadata.tensors.size(); ++t) {
    for (std::size_t p = 0; p < metadata.tensors[t].pieces.size(); ++p) {
      pieces.emplace_back(t, p);
    }
  }
  Dict(pieces.size(), [&](std::size_t i) {
    const MetadataTensor& tensor = metadata.tensors[pieces[i].first];
    const Piece& piece = tensor.pieces[pieces[i].second];
    Index(pieces[i].first, tensor.key, piece);
    Once(files_[piece.file], [&] { emit_.Text(metadata.files[piece.file]); });
  });
}

void Encoder::FlatMapping(const Metadata& metadata) {
  if (!metadata.has_flat_mapping) {
    emit_.None();
    return;
  }
  Dict(metadata.flat_mapping.size(), [&](std::size_t i) {
    emit_.Text(metadata.flat_mapping[i].first);
    emit_.Mark();
    for (const PathPart& part : metadata.flat_mapping[i].second) {
      if (const auto* text = std::get_if<std::string>(&part)) {
        emit_.Text(*text);
      } else if (const auto* number = std::get_if<std::int64_t>(&part)) {
        emit_.Int(*number);
      } else {
        emit_.Int(static_cast<std::int64_t>(std::get<ListIndex>(part).position));
      }
    }
    emit_.Tuple();
  });
}

void Encoder::Encode(const Metadata& metadata) {
  keys_.resize(metadata.tensors.size());
  files_.resize(metadata.files.size());
  Object(kMetadataNumber, kMetadataClass, [&] {
    FieldName(Field::kStateDictMetadata);
    Tensors(metadata);
    FieldName(Field::kStorageMetadata);
    Entries(metadata);
    FieldName(Field::kFlatMapping);
    FlatMapping(metadata);
  });
  emit_.Stop();
}

}  // namespace

Bytes EncodeMetadata(const Metadata& metadata, Flavour flavour) {
  Bytes out;
  Encoder(out, flavour).Encode(metadata);
  return out;
}

}  // namespace reshard::paddle
