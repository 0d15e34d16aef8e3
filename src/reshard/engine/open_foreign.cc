#include "reshard/engine/open_foreign.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "reshard/catalog/wire.h"
#include "reshard/engine/message.h"
#include "reshard/format/native/catalog_codec.h"

namespace reshard {
namespace {

bool ReadLong(WireReader& reader, ByteSpan& out) {
  std::uint64_t size = 0;
  return reader.Read(size) && reader.ReadBytes(size, out);
}

void AppendLong(Bytes& out, ByteSpan bytes) {
  AppendLittle(out, static_cast<std::uint64_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// One collective opening, on one rank.
class Opening {
 public:
  Opening(Storage& storage, ProcessGroup& group, int source, const ForeignRef& ref, bool all_shared)
      : storage_(storage), group_(group), source_(source), ref_(ref), all_shared_(all_shared) {}

  Result<TogetherOpened> Run() {
    RESHARD_TRY(ShareFiles());
    RESHARD_TRY(AssignFiles());
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all,
                       group_.Gather(ExamineOwn(), source_, Wait::kData));
    Bytes message;
    if (is_source()) {
      message = AssembleAll(all);
    }
    RESHARD_TRY_ASSIGN(const Bytes told, group_.Broadcast(message, source_, Wait::kData));
    return DecodeOpened(told);
  }

 private:
  bool is_source() const { return group_.rank() == source_; }

  /// Everybody learns the names of the data files.
  Status ShareFiles() {
    Bytes message;
    if (is_source()) {
      Result<std::unique_ptr<ForeignMetadata>> metadata = ReadForeignMetadata(storage_, ref_);
      message =
          PackStatus(metadata.ok() ? OkStatus() : Status(tl::unexpected<Error>(metadata.error())));
      if (metadata.ok()) {
        metadata_ = std::move(*metadata);
        AppendTexts(message, metadata_->files());
        for (std::size_t i = 0; i < metadata_->files().size(); ++i) {
          AppendLong(message, metadata_->Request(i));
        }
      }
    }
    RESHARD_TRY_ASSIGN(const Bytes told, group_.Broadcast(message, source_, Wait::kData));
    WireReader reader(told);
    RESHARD_TRY(UnpackStatus(reader));
    if (!ReadTexts(reader, files_)) {
      return BadMessage("names of data files");
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      ByteSpan request;
      if (!ReadLong(reader, request)) {
        return BadMessage("names of data files");
      }
      requests_.emplace_back(request.begin(), request.end());
    }
    return OkStatus();
  }

  /// Each file goes to the rank that sees it and has the fewest; one that nobody sees to the
  /// source.
  Status AssignFiles() {
    owner_.assign(files_.size(), source_);
    if (all_shared_) {
      for (std::size_t i = 0; i < files_.size(); ++i) {
        owner_[i] = static_cast<int>(i % static_cast<std::size_t>(group_.size()));
      }
      return OkStatus();
    }
    Bytes sees(files_.size());
    if (const Result<std::vector<ObjectInfo>> objects = storage_.ListForeign(); objects.ok()) {
      std::set<std::string_view> names;
      for (const ObjectInfo& object : *objects) {
        names.insert(object.name);
      }
      for (std::size_t i = 0; i < files_.size(); ++i) {
        sees[i] = std::byte{names.count(files_[i]) != 0};
      }
    }
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group_.AllGather(sees));
    std::vector<std::size_t> load(all.size());
    for (std::size_t i = 0; i < files_.size(); ++i) {
      std::size_t best = all.size();
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].size() != files_.size()) {
          return BadMessage("visible data files");
        }
        if (all[rank][i] != std::byte{0} && (best == all.size() || load[rank] < load[best])) {
          best = rank;
        }
      }
      if (best != all.size()) {
        owner_[i] = static_cast<int>(best);
        ++load[best];
      }
    }
    return OkStatus();
  }

  Bytes ExamineOwn() {
    Bytes out;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (owner_[i] != group_.rank()) {
        continue;
      }
      const ExaminedFile file = ExamineFile(storage_, FormatOf(ref_), files_[i], requests_[i]);
      group_.Beat();
      AppendLittle(out, static_cast<std::uint64_t>(i));
      AppendLittle(out, file.size);
      AppendLittle(out, file.mtime_ns);
      AppendLong(out,
                 PackStatus(file.found.ok() ? OkStatus()
                                            : Status(tl::unexpected<Error>(file.found.error()))));
      AppendLong(out, file.found.ok() ? ByteSpan(*file.found) : ByteSpan());
    }
    return out;
  }

  Result<std::vector<ExaminedFile>> DecodeExamined(const std::vector<Bytes>& all) const {
    std::vector<ExaminedFile> files(files_.size());
    for (const Bytes& bytes : all) {
      WireReader reader(bytes);
      while (!reader.AtEnd()) {
        std::uint64_t index = 0;
        ExaminedFile file;
        ByteSpan status;
        ByteSpan found;
        if (!reader.Read(index) || index >= files.size() || !reader.Read(file.size) ||
            !reader.Read(file.mtime_ns) || !ReadLong(reader, status) || !ReadLong(reader, found)) {
          return BadMessage("examined data files");
        }
        WireReader status_reader(status);
        if (Status failed = UnpackStatus(status_reader); !failed.ok()) {
          file.found = tl::unexpected<Error>(std::move(failed).error());
        } else {
          file.found = Bytes(found.begin(), found.end());
        }
        files[index] = std::move(file);
      }
    }
    return files;
  }

  Bytes AssembleAll(const std::vector<Bytes>& all) const {
    const Result<std::vector<ExaminedFile>> files = DecodeExamined(all);
    if (!files.ok()) {
      return PackStatus(tl::unexpected<Error>(files.error()));
    }
    const Result<Assembled> content = FormatOf(ref_).Assemble(ref_, *metadata_, *files);
    if (!content.ok()) {
      return PackStatus(tl::unexpected<Error>(content.error()));
    }
    Bytes out = PackStatus(OkStatus());
    AppendLong(out, native::EncodeCatalog(content->catalog));
    AppendLittle(out, static_cast<std::uint32_t>(content->faults.size()));
    for (const ForeignFault& fault : content->faults) {
      AppendLong(out, PackStatus(tl::unexpected<Error>(fault.error)));
      AppendCounted(out, AsBytes(fault.file));
      AppendTexts(out, fault.keys);
    }
    return out;
  }

  static Result<TogetherOpened> DecodeOpened(ByteSpan told) {
    WireReader reader(told);
    RESHARD_TRY(UnpackStatus(reader));
    ByteSpan catalog_bytes;
    std::uint32_t count = 0;
    if (!ReadLong(reader, catalog_bytes) || !reader.Read(count)) {
      return BadMessage("foreign catalog");
    }
    RESHARD_TRY_ASSIGN(Catalog catalog, native::DecodeCatalog(catalog_bytes));
    std::vector<ForeignFault> faults(count);
    for (ForeignFault& fault : faults) {
      ByteSpan status;
      ByteSpan file;
      if (!ReadLong(reader, status) || !reader.ReadCounted(file) ||
          !ReadTexts(reader, fault.keys)) {
        return BadMessage("faults of a foreign checkpoint");
      }
      WireReader status_reader(status);
      Status failed = UnpackStatus(status_reader);
      if (failed.ok()) {
        return BadMessage("faults of a foreign checkpoint");
      }
      fault.error = std::move(failed).error();
      fault.file = std::string(AsText(file));
    }
    return TogetherOpened{std::move(catalog), std::move(faults)};
  }

  Storage& storage_;
  ProcessGroup& group_;
  int source_;
  const ForeignRef& ref_;
  bool all_shared_;
  std::unique_ptr<ForeignMetadata> metadata_;  // on the source
  std::vector<std::string> files_;
  std::vector<Bytes> requests_;  // what Examine has to know, per file
  std::vector<int> owner_;       // group rank that examines it
};

}  // namespace

Result<TogetherOpened> OpenForeignTogether(Storage& storage, ProcessGroup& group, int source,
                                           const ForeignRef& ref, bool all_shared) {
  return Opening(storage, group, source, ref, all_shared).Run();
}

}  // namespace reshard
