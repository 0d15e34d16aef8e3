#include "reshard/storage/posix_path.h"

#include <sys/stat.h>

#include <charconv>
#include <utility>
#include <vector>

#include "reshard/storage/posix_storage.h"

namespace reshard {
namespace {

/// What is left of a directory when only one file and its companions count.
class FileView final : public Storage {
 public:
  FileView(std::unique_ptr<Storage> directory, std::string name, std::string description)
      : directory_(std::move(directory)),
        name_(std::move(name)),
        description_(std::move(description)) {}

  const std::string& description() const override { return description_; }

  Result<std::vector<ObjectInfo>> List() override {
    RESHARD_TRY_ASSIGN(std::vector<ObjectInfo> all, directory_->List());
    return OwnOf(std::move(all));
  }

  Result<std::vector<ObjectInfo>> ListForeign() override {
    RESHARD_TRY_ASSIGN(std::vector<ObjectInfo> all, directory_->ListForeign());
    return OwnOf(std::move(all));
  }

  Result<std::unique_ptr<ReadableObject>> OpenForeign(std::string_view name) override {
    return directory_->OpenForeign(name);
  }

  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override {
    return directory_->Open(name);
  }

  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override {
    return directory_->Create(name, options);
  }

  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override {
    return directory_->Publish(from, to, mode);
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return directory_->Rename(from, to);
  }

  Status Remove(std::string_view name) override { return directory_->Remove(name); }

  Status SyncNames() override { return directory_->SyncNames(); }

  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override {
    return directory_->TryLock(name);
  }

  std::uint64_t Identity() const override { return directory_->Identity(); }

 private:
  std::vector<ObjectInfo> OwnOf(std::vector<ObjectInfo> objects) const {
    std::erase_if(objects, [this](const ObjectInfo& object) {
      return object.name != name_ && !object.name.starts_with(name_ + ".reshard");
    });
    return objects;
  }

  std::unique_ptr<Storage> directory_;
  std::string name_;
  std::string description_;
};

}  // namespace

PathArgument ParsePath(const std::string& text) {
  const std::size_t at = text.rfind('@');
  struct stat info = {};
  if (at == std::string::npos || at == 0 || ::lstat(text.c_str(), &info) == 0) {
    return {text, std::nullopt};
  }
  const std::string digits = text.substr(at + 1);
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  const bool canonical = error == std::errc() && end == digits.data() + digits.size() &&
                         (digits.size() == 1 || digits[0] != '0');
  return canonical ? PathArgument{text.substr(0, at), id} : PathArgument{text, std::nullopt};
}

Result<std::unique_ptr<Storage>> OpenPosixPath(const std::string& path) {
  PosixStorageOptions options;
  options.foreign_names = true;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return OpenPosixStorage(path, options);
  }
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  RESHARD_TRY_ASSIGN(std::unique_ptr<Storage> storage, OpenPosixStorage(directory, options));
  return std::unique_ptr<Storage>(std::make_unique<FileView>(std::move(storage), name, path));
}

}  // namespace reshard
