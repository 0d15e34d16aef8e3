#include "reshard/storage/posix_storage.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "reshard/storage/staging_buffer.h"
#include "tests/storage/conformance.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using ::testing::HasSubstr;

StorageFixture MakePosix(const PosixStorageOptions& options) {
  auto folder = std::make_shared<ScratchFolder>();
  auto storage = OpenPosixStorage(folder->path(), options);
  return {folder, storage.ok() ? std::move(*storage) : nullptr};
}

StorageFixture MakeDirect() { return MakePosix({}); }

StorageFixture MakeBuffered() { return MakePosix({.direct_io = false}); }

StorageFixture MakeFallbacks() { return MakePosix({.modern_calls = false}); }

INSTANTIATE_TEST_SUITE_P(PosixDirect, StorageConformanceTest, ::testing::Values(&MakeDirect));
INSTANTIATE_TEST_SUITE_P(PosixBuffered, StorageConformanceTest, ::testing::Values(&MakeBuffered));
INSTANTIATE_TEST_SUITE_P(PosixFallbacks, StorageConformanceTest, ::testing::Values(&MakeFallbacks));

// Runs once with the modern calls and once with the fallbacks.
class PosixStorageTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Reopen({}); }

  void Reopen(PosixStorageOptions options) {
    options.modern_calls = GetParam();
    ASSERT_OK_AND_ASSIGN(storage_, OpenPosixStorage(folder_.path(), options));
  }

  std::string PathOf(const std::string& name) const { return folder_.path() + "/" + name; }

  void WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(PathOf(name)) << text;
  }

  Storage& storage() { return *storage_; }

  ScratchFolder folder_;
  std::unique_ptr<Storage> storage_;
};

INSTANTIATE_TEST_SUITE_P(Calls, PosixStorageTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Modern" : "Fallback"; });

TEST_P(PosixStorageTest, RefusesWhatIsNotAPlainFileWithoutBlocking) {
  WriteFile("real", "secret");
  ASSERT_EQ(::symlink("real", PathOf("inside").c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", PathOf("outside").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", PathOf("dangling").c_str()), 0);
  ASSERT_EQ(::mkfifo(PathOf("fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(PathOf("folder").c_str(), 0700), 0);
  std::vector<std::string> names = {"inside", "outside", "dangling", "fifo", "folder"};
  if (::mknod(PathOf("device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {
    names.push_back("device");
  }
  for (const std::string& name : names) {
    const auto opened = storage().Open(name);
    EXPECT_THAT(opened, FailsWith("NOT_REGULAR")) << name;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorruption);
    EXPECT_THAT(opened.error().message, HasSubstr(PathOf(name)));
    EXPECT_THAT(storage().TryLock(name), FailsWith("NOT_REGULAR")) << name;
    EXPECT_THAT(storage().Create(name, {}), FailsWith("FILE_EXISTS")) << name;
  }
  ASSERT_OK_AND_ASSIGN(auto list, storage().List());
  for (const ObjectInfo& info : list) {
    EXPECT_EQ(info.regular, info.name == "real") << info.name;
  }
  EXPECT_FALSE(std::filesystem::exists(PathOf("nowhere"))) << "Create followed a symlink";
}

TEST_P(PosixStorageTest, StrictLinksRefusesASecondHardLink) {
  WriteFile("a", "x");
  ASSERT_EQ(::link(PathOf("a").c_str(), PathOf("b").c_str()), 0);
  EXPECT_OK(storage().Open("b"));
  Reopen({.strict_links = true});
  EXPECT_THAT(storage().Open("b"), FailsWith("NOT_REGULAR"));
  ASSERT_OK(storage().Remove("b"));
  EXPECT_OK(storage().Open("a"));
}

TEST_P(PosixStorageTest, ForeignNamesReachSubfoldersButNotThroughLinks) {
  std::filesystem::create_directories(PathOf("sub/deep"));
  WriteFile("sub/deep/x", "deep");
  WriteFile(".metadata", "meta");
  ASSERT_EQ(::symlink("sub", PathOf("link").c_str()), 0);
  EXPECT_THAT(storage().Open("sub/deep/x"), FailsWith("BAD_NAME"));
  Reopen({.foreign_names = true});
  ASSERT_OK_AND_ASSIGN(auto object, storage().Open("sub/deep/x"));
  EXPECT_EQ(object->size(), 4u);
  EXPECT_OK(storage().Open(".metadata"));
  EXPECT_THAT(storage().Open("link/deep/x"), FailsWith("NOT_REGULAR"));
  EXPECT_THAT(storage().Open("sub/../.metadata"), FailsWith("BAD_NAME"));
  EXPECT_THAT(storage().Create("sub/new", {}), FailsWith("BAD_NAME"));
}

TEST_P(PosixStorageTest, FileCutWhileOpenIsTruncation) {
  WriteFile("a", std::string(10000, 'x'));
  ASSERT_OK_AND_ASSIGN(auto object, storage().Open("a"));
  ASSERT_EQ(::truncate(PathOf("a").c_str(), 5000), 0);
  Bytes out(10000);
  const Status status = object->ReadAt(0, out);
  EXPECT_THAT(status, FailsWith("FILE_TRUNCATED"));
  EXPECT_TRUE(status.error().data_loss);
  EXPECT_THAT(status.error().message, HasSubstr("10000"));
  EXPECT_THAT(status.error().message, HasSubstr("5000"));
  ASSERT_OK_AND_ASSIGN(StagingBuffer buffer, StagingBuffer::Allocate(8192));
  EXPECT_THAT(object->ReadAtDirect(0, buffer.span()), FailsWith("FILE_TRUNCATED"));
}

TEST_P(PosixStorageTest, FileReplacedWhileOpenIsReadAsItWas) {
  ASSERT_OK_AND_ASSIGN(StagingBuffer buffer, StagingBuffer::Allocate(8192));
  WriteFile("a", std::string(8192, 'o'));
  ASSERT_OK_AND_ASSIGN(auto object, storage().Open("a"));
  ASSERT_EQ(::unlink(PathOf("a").c_str()), 0);
  WriteFile("a", std::string(8192, 'n'));
  ASSERT_OK(object->ReadAtDirect(0, buffer.span()));
  EXPECT_EQ(buffer.data()[0], std::byte{'o'});
}

TEST_P(PosixStorageTest, DestructionLeavesTheFileOfAnotherWriterAlone) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {}));
  ASSERT_EQ(::unlink(PathOf("a").c_str()), 0);
  WriteFile("a", "other");
  object.reset();
  EXPECT_TRUE(std::filesystem::exists(PathOf("a")));
}

TEST_P(PosixStorageTest, FileSizeLimitIsAShortWriteThenAnError) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {}));
  rlimit small = old;
  small.rlim_cur = 10000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = object->WriteAt(0, Bytes(20001));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_THAT(status, FailsWith("WRITE"));
  // The first call wrote 10000 bytes; the loop went on after them.
  EXPECT_THAT(status.error().message, HasSubstr("write 10001 bytes at offset 10000"));
  EXPECT_THAT(status.error().message, HasSubstr("ulimit -f"));
}

TEST_P(PosixStorageTest, ReservedSpaceOfAnUnfinishedObjectIsGivenBack) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.size_hint = 1 << 20}));
  EXPECT_OK(object->WriteAt(0, AsBytes("abc")));
  EXPECT_OK(object->Finish(3));
  struct stat info = {};
  ASSERT_EQ(::stat(PathOf("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 3);
  EXPECT_LE(info.st_blocks * 512, 64 << 10);
}

TEST_P(PosixStorageTest, IdentityTellsFoldersApart) {
  ASSERT_OK_AND_ASSIGN(auto same, OpenPosixStorage(folder_.path() + "/"));
  EXPECT_EQ(same->Identity(), storage().Identity());
  const ScratchFolder other_folder;
  ASSERT_OK_AND_ASSIGN(auto other, OpenPosixStorage(other_folder.path()));
  EXPECT_NE(other->Identity(), storage().Identity());
}

TEST_P(PosixStorageTest, JustWrittenBufferedFileIsCached) {
  Reopen({.direct_io = false});
  WriteFile("a", std::string(1 << 20, 'x'));
  ASSERT_OK_AND_ASSIGN(auto object, storage().Open("a"));
  EXPECT_TRUE(object->IsCached({4097, 900000}));
  EXPECT_FALSE(object->IsCached({0, 2 << 20}));
  EXPECT_FALSE(object->IsCached({0, 0}));
}

TEST(PosixOpenTest, MissingWrongAndCreatedDirectories) {
  const ScratchFolder folder;
  const auto missing = OpenPosixStorage(folder.path() + "/a/b");
  EXPECT_THAT(missing, FailsWith("DIRECTORY_MISSING"));
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  ASSERT_OK_AND_ASSIGN(auto made, OpenPosixStorage(folder.path() + "/a/b//", {.create = true}));
  EXPECT_EQ(made->description(), folder.path() + "/a/b");
  EXPECT_OK(OpenPosixStorage(folder.path() + "/a/b", {.create = true}));
  std::ofstream(folder.path() + "/file") << "x";
  EXPECT_THAT(OpenPosixStorage(folder.path() + "/file"), FailsWith("NOT_A_DIRECTORY"));
  EXPECT_THAT(OpenPosixStorage(folder.path() + "/file/x", {.create = true}),
              FailsWith("NOT_A_DIRECTORY"));
  std::filesystem::create_symlink(folder.path() + "/nothing", folder.path() + "/dangling");
  const auto dangling = OpenPosixStorage(folder.path() + "/dangling", {.create = true});
  ASSERT_THAT(dangling, FailsWith("CREATE"));
  EXPECT_THAT(dangling.error().message, ::testing::HasSubstr("cannot make directory "));
  EXPECT_THAT(OpenPosixStorage(""), FailsWith("NOT_A_DIRECTORY"));
  ASSERT_EQ(::symlink("a", (folder.path() + "/link").c_str()), 0);
  EXPECT_OK(OpenPosixStorage(folder.path() + "/link"));
}

// A tmpfs of 1 MiB for the life of the object.
class SmallDisk {
 public:
  SmallDisk() { mounted_ = ::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=1m") == 0; }

  ~SmallDisk() {
    if (mounted_) {
      ::umount2(folder_.path().c_str(), MNT_DETACH);
    }
  }

  bool Remount(unsigned long flags) {
    return ::mount("none", folder_.path().c_str(), "tmpfs", MS_REMOUNT | flags, "size=1m") == 0;
  }

  bool mounted() const { return mounted_; }

  const std::string& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
  bool mounted_ = false;
};

TEST(PosixDiskTest, FullDiskIsNoSpace) {
  SmallDisk disk;
  if (!disk.mounted()) {
    GTEST_SKIP() << "mounting needs root";
  }
  ASSERT_OK_AND_ASSIGN(auto storage, OpenPosixStorage(disk.path()));
  const auto reserved = storage->Create("a", {.size_hint = 2 << 20});
  EXPECT_THAT(reserved, FailsWith("NO_SPACE"));
  EXPECT_EQ(reserved.error().code, ErrorCode::kIo);
  EXPECT_THAT(reserved.error().message, HasSubstr("free space"));
  {
    ASSERT_OK_AND_ASSIGN(auto object, storage->Create("a", {}));
    const Status status = object->WriteAt(0, Bytes(2 << 20));
    EXPECT_THAT(status, FailsWith("NO_SPACE"));
    EXPECT_THAT(status.error().message, HasSubstr("at offset 1048576"));
  }
  ASSERT_OK_AND_ASSIGN(auto list, storage->List());
  EXPECT_TRUE(list.empty()) << "a failed object was left behind";
}

TEST(PosixDiskTest, ReadOnlyDiskIsNamed) {
  SmallDisk disk;
  if (!disk.mounted() || !disk.Remount(MS_RDONLY)) {
    GTEST_SKIP() << "mounting needs root";
  }
  ASSERT_OK_AND_ASSIGN(auto storage, OpenPosixStorage(disk.path()));
  const auto made = storage->Create("a", {});
  EXPECT_THAT(made, FailsWith("READ_ONLY"));
  EXPECT_THAT(made.error().message, HasSubstr("read-only"));
  EXPECT_THAT(OpenPosixStorage(disk.path() + "/sub", {.create = true}), FailsWith("READ_ONLY"));
}

TEST(PosixDiskTest, MountPointBelowTheDirectoryIsRefused) {
  SmallDisk disk;
  if (!disk.mounted()) {
    GTEST_SKIP() << "mounting needs root";
  }
  std::ofstream(disk.path() + "/x") << "other disk";
  const std::filesystem::path path = disk.path();
  for (const bool modern : {true, false}) {
    ASSERT_OK_AND_ASSIGN(
        auto storage,
        OpenPosixStorage(path.parent_path(), {.foreign_names = true, .modern_calls = modern}));
    const auto opened = storage->Open(path.filename().string() + "/x");
    EXPECT_THAT(opened, FailsWith("OPEN")) << modern;
  }
}

TEST_P(PosixStorageTest, ForeignReadingFollowsTheLastComponentToAPlainFile) {
  const ScratchFolder blobs;
  std::ofstream(blobs.path() + "/blob") << "payload";
  ASSERT_EQ(::symlink((blobs.path() + "/blob").c_str(), PathOf("link").c_str()), 0);
  ASSERT_EQ(::symlink("link", PathOf("chain").c_str()), 0);
  ASSERT_EQ(::symlink(blobs.path().c_str(), PathOf("folder").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", PathOf("dangling").c_str()), 0);
  ASSERT_EQ(::symlink("loop", PathOf("loop").c_str()), 0);
  ASSERT_EQ(::mkfifo((blobs.path() + "/fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink((blobs.path() + "/fifo").c_str(), PathOf("pipe").c_str()), 0);
  WriteFile("plain", "p");
  EXPECT_THAT(storage().OpenForeign("link"), FailsWith("NOT_REGULAR"));  // not asked for
  Reopen({.foreign_names = true});
  for (const char* name : {"link", "chain"}) {
    ASSERT_OK_AND_ASSIGN(const auto object, storage().OpenForeign(name));
    EXPECT_EQ(object->size(), 7U);
    Bytes bytes(7);
    ASSERT_OK(object->ReadAtDirect(0, bytes));
    EXPECT_EQ(AsText(bytes), "payload");
    EXPECT_THAT(storage().Open(name), FailsWith("NOT_REGULAR"));
  }
  EXPECT_OK(storage().OpenForeign("plain"));
  EXPECT_THAT(storage().OpenForeign("none"), FailsWith("FILE_MISSING"));
  EXPECT_THAT(storage().OpenForeign("dangling"), FailsWith("FILE_MISSING"));
  for (const char* name : {"folder", "loop", "pipe", "folder/blob"}) {
    EXPECT_THAT(storage().OpenForeign(name), FailsWith("NOT_REGULAR")) << name;
  }
  EXPECT_THAT(storage().OpenForeign("../x"), FailsWith("BAD_NAME"));
  ASSERT_OK_AND_ASSIGN(const auto objects, storage().ListForeign());
  std::vector<std::string> regular;
  for (const ObjectInfo& object : objects) {
    if (object.regular) {
      regular.push_back(object.name + ":" + std::to_string(object.size));
    }
  }
  EXPECT_THAT(regular, ::testing::ElementsAre("chain:7", "link:7", "plain:1"));
  ASSERT_OK_AND_ASSIGN(const auto all, storage().List());
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const ObjectInfo& o) { return o.regular; }),
            1);
}

TEST(PosixPermissionTest, DirectoryWithoutWritePermission) {
  if (::geteuid() == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const ScratchFolder folder;
  ASSERT_OK_AND_ASSIGN(auto storage, OpenPosixStorage(folder.path()));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  const auto made = storage->Create("a", {});
  EXPECT_THAT(made, FailsWith("CREATE"));
  EXPECT_THAT(made.error().message, HasSubstr("permissions"));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
  if (::getuid() == 0) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

}  // namespace
}  // namespace reshard::testing
