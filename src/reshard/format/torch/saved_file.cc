#include "reshard/format/torch/saved_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "reshard/format/torch/saved_values_internal.h"
#include "reshard/format/zip/archive.h"

namespace reshard::torch {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::NodeId;

/// torch's magic number, 0x1950a86a20f9469cfc6c, as a pickle of protocol 2.
constexpr std::array<std::uint8_t, 15> kMagic = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                                 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
constexpr std::array<std::uint8_t, 4> kZip = {'P', 'K', 3, 4};
constexpr std::int64_t kStreamProtocol = 1001;
constexpr std::uint64_t kMostSmallMember = 64;  // byteorder

bool BeginsWith(ByteSpan bytes, std::span<const std::uint8_t> with) {
  return bytes.size() >= with.size() &&
         std::equal(with.begin(), with.end(), bytes.begin(),
                    [](std::uint8_t a, std::byte b) { return a == std::to_integer<unsigned>(b); });
}

/// Where storages lie, by key.
using StoragePlaces = std::map<std::string, ByteRange, std::less<>>;

/// The distinct storages that a pickle names; without those that cannot be read, which are faults
/// of their tensors. Errors: kCorruption BAD_STORAGE, those of ReadStorage.
Result<std::map<std::string, StorageRef, std::less<>>> StoragesOf(const Document& document) {
  std::map<std::string, StorageRef, std::less<>> storages;
  for (NodeId node = 0; node < document.num_nodes(); ++node) {
    if (document.kind(node) != Kind::kPersistent) {
      continue;
    }
    Result<StorageRef> read = ReadStorage(document, node);
    if (!read.ok() && read.error().code == ErrorCode::kUnsupported) {
      continue;
    }
    RESHARD_TRY_ASSIGN(const StorageRef storage, std::move(read));
    const auto [at, is_new] = storages.emplace(std::string(storage.key), storage);
    if (!is_new && (at->second.bytes != storage.bytes || at->second.dtype != storage.dtype)) {
      return MakeError(
          ErrorCode::kCorruption, kBadStorage,
          fmt::format("byte {}: the storage '{}' has {} bytes here and {} elsewhere, "
                      "or another dtype",
                      document.offset(node), storage.key, storage.bytes, at->second.bytes));
    }
  }
  return storages;
}

/// What is the same for both forms: from the pickled value and the places of storages to tensors
/// and objects.
class Collector {
 public:
  Collector(const Document& document, ByteSource& source, std::uint64_t pickle_bytes,
            const StoragePlaces& places)
      : values_(document, source, pickle_bytes), document_(document), places_(places) {}

  Result<SavedFile> Run() {
    RESHARD_TRY_ASSIGN(const Value state, values_.ReadRoot());
    RESHARD_TRY_ASSIGN(const std::vector<FlatEntry> leaves, Flatten(state));
    for (const FlatEntry& leaf : leaves) {
      if (const auto* tensor = leaf.leaf->get_if<Tensor>()) {
        AddTensor(leaf, values_.NodeOf(*tensor));
      } else {
        out_.objects.emplace_back(leaf.path, *leaf.leaf);
      }
    }
    out_.notes = values_.TakeNotes();
    return std::move(out_);
  }

 private:
  void AddTensor(const FlatEntry& leaf, NodeId node) {
    Result<SavedTensor> tensor = MakeTensor(leaf, node);
    if (tensor.ok()) {
      out_.tensors.push_back(std::move(*tensor));
    } else {
      out_.faults.push_back(
          {tensor.error().WithContext(fmt::format("tensor '{}'", leaf.key)), leaf.key});
    }
  }

  Result<SavedTensor> MakeTensor(const FlatEntry& leaf, NodeId node) {
    RESHARD_TRY_ASSIGN(const TensorRef ref, ReadTensor(document_, node));
    RESHARD_TRY(CheckNotLazy(ref));
    const auto place = places_.find(ref.storage.key);
    if (place == places_.end()) {
      return MakeError(ErrorCode::kCorruption, kBadStorage,
                       fmt::format("its storage '{}' is not in the file", ref.storage.key));
    }
    SavedTensor tensor{leaf.path, ref.dtype, ref.size, {}, {}};
    const auto identity = std::tuple(place->first, ref.dtype, ref.offset, ref.size, ref.stride);
    const auto [at, is_new] = seen_.emplace(identity, leaf.key);
    if (!is_new) {
      tensor.alias_of = at->second;
      return tensor;
    }
    Result<std::vector<DensePart>> parts = StridedToChunks(
        WholeBox(ref.size), ref.stride, place->second.offset + ref.byte_offset(), ref.dtype);
    if (!parts.ok()) {
      seen_.erase(at);
      return tl::unexpected<Error>(std::move(parts).error());
    }
    tensor.parts = std::move(*parts);
    return tensor;
  }

  SavedValues values_;
  const Document& document_;
  const StoragePlaces& places_;
  std::map<std::tuple<std::string, DType, std::uint64_t, Shape, Shape>, std::string> seen_;
  SavedFile out_;
};

pickle::ParseOptions ObjectOptions() {
  pickle::ParseOptions options;
  options.globals = SavedGlobals();
  options.persistent_ids = true;
  options.keep_unknown = true;
  return options;
}

/// The zip form.
Status CheckKind(const zip::Archive& archive) {
  if (archive.Find("data.pkl") == nullptr) {
    return MakeError(ErrorCode::kUnsupported, zip::kKindNotSupported,
                     "a zip archive without data.pkl, so not of torch.save");
  }
  const zip::Member* order = archive.Find("byteorder");
  if (order == nullptr) {
    return OkStatus();
  }
  RESHARD_TRY_ASSIGN(const Bytes text, archive.Read(*order, kMostSmallMember));
  return AsText(text) == "little"
             ? OkStatus()
             : Status(MakeError(ErrorCode::kUnsupported, kBigEndian,
                                fmt::format("the file has byte order '{}'; save it again on a "
                                            "little-endian machine",
                                            AsText(text))));
}

Result<SavedFile> ReadZip(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const zip::Archive archive, zip::Archive::Open(source, {0, source.size()}));
  RESHARD_TRY(CheckKind(archive));
  RESHARD_TRY_ASSIGN(const ByteRange pickle, archive.Locate(*archive.Find("data.pkl")));
  pickle::ParseOptions options = ObjectOptions();
  options.begin = pickle.offset;
  options.size = pickle.size;
  RESHARD_TRY_ASSIGN(const pickle::Parsed parsed, pickle::Parse(source, options));
  RESHARD_TRY_ASSIGN(const auto storages, StoragesOf(parsed.document));
  StoragePlaces places;
  for (const auto& [key, storage] : storages) {
    const zip::Member* member = archive.Find("data/" + key);
    if (member == nullptr) {
      continue;  // a fault of the tensors that need it
    }
    if (member->size != storage.bytes) {
      return MakeError(ErrorCode::kCorruption, kBadStorage,
                       fmt::format("the storage '{}' should have {} bytes and has {}", key,
                                   storage.bytes, member->size));
    }
    RESHARD_TRY_ASSIGN(places[key], archive.Locate(*member));
  }
  return Collector(parsed.document, source, pickle.size, places).Run();
}

/// The older form: magic number, protocol, facts of the machine, the value, the keys of its
/// storages, and each storage with its number of elements before it.
class StreamReader {
 public:
  explicit StreamReader(ByteSource& source) : source_(source), at_(kMagic.size()) {}

  Result<SavedFile> Run() {
    RESHARD_TRY(ReadProtocol());
    RESHARD_TRY(ReadMachine());
    const std::uint64_t begin = at_;
    RESHARD_TRY_ASSIGN(const Document document, Next(ObjectOptions()));
    const std::uint64_t pickle_bytes = at_ - begin;
    RESHARD_TRY_ASSIGN(const Document keys, Next({}));
    RESHARD_TRY(PlaceStorages(document, keys));
    return Collector(document, source_, pickle_bytes, places_).Run();
  }

 private:
  static tl::unexpected<Error> Bad(std::string_view what) {
    return MakeError(ErrorCode::kCorruption, kBadStream, std::string(what));
  }

  Result<Document> Next(pickle::ParseOptions options) {
    options.begin = at_;
    options.allow_trailing = true;
    RESHARD_TRY_ASSIGN(pickle::Parsed parsed, pickle::Parse(source_, options));
    at_ = parsed.end;
    return std::move(parsed.document);
  }

  Status ReadProtocol() {
    RESHARD_TRY_ASSIGN(const Document document, Next({}));
    const NodeId root = document.root();
    if (document.kind(root) != Kind::kInt || document.AsInt(root) != kStreamProtocol) {
      return Bad("the version of the stream is not 1001");
    }
    return OkStatus();
  }

  Status ReadMachine() {
    RESHARD_TRY_ASSIGN(const Document document, Next({}));
    if (document.kind(document.root()) != Kind::kDict) {
      return Bad("what should be facts of the machine is no dict");
    }
    const NodeId little = document.Find(document.root(), "little_endian");
    if (little == pickle::kNoNode || document.kind(little) != Kind::kBool) {
      return Bad("the file does not say its byte order");
    }
    return document.AsBool(little)
               ? OkStatus()
               : Status(MakeError(ErrorCode::kUnsupported, kBigEndian,
                                  "the file is big-endian; save it again on a little-endian "
                                  "machine"));
  }

  Status PlaceStorages(const Document& document, const Document& keys) {
    RESHARD_TRY_ASSIGN(const auto storages, StoragesOf(document));
    if (keys.kind(keys.root()) != Kind::kList) {
      return Bad("the keys of the storages are no list");
    }
    for (const NodeId item : keys.items(keys.root())) {
      const auto found =
          keys.kind(item) == Kind::kText ? storages.find(keys.Text(item)) : storages.end();
      if (found == storages.end() || places_.contains(found->first)) {
        return Bad("a storage that no tensor names, or that is listed twice");
      }
      RESHARD_TRY(PlaceOne(found->first, found->second));
    }
    return at_ == source_.size() ? OkStatus() : Status(Bad("bytes after the last storage"));
  }

  Status PlaceOne(const std::string& key, const StorageRef& storage) {
    Bytes head(sizeof(std::uint64_t));
    RESHARD_TRY(source_.ReadAt(at_, head));
    at_ += head.size();
    const auto count = LoadLittle<std::uint64_t>(head.data());
    if (count != storage.numel || storage.bytes > source_.size() - at_) {
      return MakeError(ErrorCode::kCorruption, kBadStorage,
                       fmt::format("the storage '{}' should have {} elements; the file says {} "
                                   "and has {} bytes left",
                                   key, storage.numel, count, source_.size() - at_));
    }
    places_[key] = {at_, storage.bytes};
    at_ += storage.bytes;
    return OkStatus();
  }

  ByteSource& source_;
  std::uint64_t at_;
  StoragePlaces places_;
};

}  // namespace

bool LooksSaved(ByteSpan first_bytes) {
  return BeginsWith(first_bytes, kZip) || BeginsWith(first_bytes, kMagic);
}

Result<SavedFile> ReadSavedFile(ByteSource& source) {
  Bytes first(std::min<std::uint64_t>(kMagic.size(), source.size()));
  RESHARD_TRY(source.ReadAt(0, first));
  return BeginsWith(first, kMagic) ? StreamReader(source).Run() : ReadZip(source);
}

}  // namespace reshard::torch
