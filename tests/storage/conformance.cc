#include "tests/storage/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "reshard/storage/staging_buffer.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {

ScratchFolder::ScratchFolder() {
  std::string name = ::testing::TempDir() + "reshard_storage_XXXXXX";
  path_ = ::mkdtemp(name.data()) == nullptr ? "" : name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

bool StorageConformanceTest::Put(const std::string& name, std::string_view text) {
  auto object = storage().Create(name, {});
  return object.ok() && (*object)->WriteAt(0, AsBytes(text)).ok() &&
         (*object)->Finish(text.size()).ok();
}

std::string StorageConformanceTest::Get(const std::string& name) {
  auto object = storage().Open(name);
  if (!object.ok()) {
    return fmt::format("<{}>", object.error().reason);
  }
  Bytes out((*object)->size());
  const Status status = (*object)->ReadAt(0, out);
  return status.ok() ? std::string(AsText(out)) : fmt::format("<{}>", status.error().reason);
}

std::string StorageConformanceTest::Names() {
  std::string out;
  auto list = storage().List();
  if (!list.ok()) {
    return fmt::format("<{}>", list.error().reason);
  }
  for (const ObjectInfo& info : *list) {
    out += fmt::format("{}{}", out.empty() ? "" : " ", info.name);
  }
  return out;
}

namespace {

TEST_P(StorageConformanceTest, RangesInAnyOrderGiveTheObject) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a.bin", {}));
  EXPECT_EQ(object->name(), "a.bin");
  EXPECT_OK(object->WriteAt(5, AsBytes("world")));
  EXPECT_OK(object->WriteAt(0, AsBytes("hello")));
  EXPECT_OK(object->Finish(10));
  EXPECT_EQ(Get("a.bin"), "helloworld");
}

TEST_P(StorageConformanceTest, FinishCutsThePadding) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.size_hint = 7}));
  EXPECT_OK(object->WriteAt(0, AsBytes("payload.....")));
  EXPECT_OK(object->Finish(7));
  EXPECT_EQ(Get("a"), "payload");
  ASSERT_OK_AND_ASSIGN(auto list, storage().List());
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].size, 7u);
  EXPECT_TRUE(list[0].regular);
  EXPECT_GT(list[0].mtime_ns, 1'500'000'000'000'000'000);
}

TEST_P(StorageConformanceTest, FinishRefusesAHole) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.size_hint = 100}));
  EXPECT_OK(object->WriteAt(0, AsBytes("1234")));
  EXPECT_THAT(object->Finish(100), FailsWith("WRITE"));
  object.reset();
  EXPECT_EQ(Names(), "");
}

TEST_P(StorageConformanceTest, AlignedAndOddPiecesMeet) {
  constexpr std::size_t kBlock = 64 << 10;
  constexpr std::size_t kSize = 3 * kBlock + 777;
  ASSERT_OK_AND_ASSIGN(StagingBuffer buffer, StagingBuffer::Allocate(4 * kBlock));
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    buffer.data()[i] = static_cast<std::byte>(i * 31 + i / 251);
  }
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.size_hint = kSize}));
  const ByteSpan all = buffer.span();
  EXPECT_OK(object->WriteAt(kBlock, all.subspan(kBlock, kBlock)));
  EXPECT_OK(object->WriteAt(3 * kBlock, all.subspan(3 * kBlock, 4096)));  // padded tail
  EXPECT_OK(object->WriteAt(2 * kBlock, all.subspan(2 * kBlock, 100)));
  EXPECT_OK(object->WriteAt(2 * kBlock + 100, all.subspan(2 * kBlock + 100, kBlock - 100)));
  EXPECT_OK(object->WriteAt(0, all.subspan(0, kBlock)));
  EXPECT_OK(object->Finish(kSize));
  ASSERT_OK_AND_ASSIGN(auto reader, storage().Open("a"));
  ASSERT_EQ(reader->size(), kSize);
  ASSERT_OK_AND_ASSIGN(StagingBuffer back, StagingBuffer::Allocate(4 * kBlock));
  EXPECT_OK(reader->ReadAtDirect(0, back.span().first(3 * kBlock)));
  EXPECT_OK(reader->ReadAtDirect(3 * kBlock, back.span().subspan(3 * kBlock, 777)));
  EXPECT_EQ(std::memcmp(back.data(), buffer.data(), kSize), 0);
  Bytes odd(5000);
  EXPECT_OK(reader->ReadAtDirect(kBlock - 1, odd));
  EXPECT_EQ(std::memcmp(odd.data(), buffer.data() + kBlock - 1, odd.size()), 0);
  reader->IsCached({0, kSize});
}

TEST_P(StorageConformanceTest, WritersAndReadersOnSeveralThreads) {
  constexpr std::size_t kPiece = 8192;
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.size_hint = 8 * kPiece}));
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Bytes piece(kPiece, static_cast<std::byte>(i + 1));
      failures += !object->WriteAt(i * kPiece, piece).ok();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ASSERT_OK(object->Finish(8 * kPiece));
  ASSERT_OK_AND_ASSIGN(auto reader, storage().Open("a"));
  threads.clear();
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      Bytes piece(kPiece);
      failures += !reader->ReadAt(i * kPiece, piece).ok() ||
                  piece != Bytes(kPiece, static_cast<std::byte>(i + 1));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failures, 0);
}

TEST_P(StorageConformanceTest, EmptyObject) {
  ASSERT_TRUE(Put("empty", ""));
  EXPECT_EQ(Get("empty"), "");
  EXPECT_EQ(Names(), "empty");
}

TEST_P(StorageConformanceTest, ReadBeyondTheEndIsTruncation) {
  ASSERT_TRUE(Put("a", "12345"));
  ASSERT_OK_AND_ASSIGN(auto reader, storage().Open("a"));
  Bytes out(4);
  EXPECT_OK(reader->ReadAt(1, out));
  EXPECT_EQ(AsText(out), "2345");
  const Status status = reader->ReadAt(2, out);
  EXPECT_THAT(status, FailsWith("FILE_TRUNCATED"));
  EXPECT_EQ(status.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(status.error().message, ::testing::HasSubstr("5"));
  EXPECT_FALSE(reader->ReadAt(~std::uint64_t{0}, out).ok());
}

TEST_P(StorageConformanceTest, CreateIsExclusive) {
  ASSERT_TRUE(Put("a", "one"));
  const auto again = storage().Create("a", {});
  EXPECT_THAT(again, FailsWith("FILE_EXISTS"));
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(Get("a"), "one");
}

TEST_P(StorageConformanceTest, UnfinishedObjectIsRemoved) {
  {
    ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {}));
    EXPECT_OK(object->WriteAt(0, AsBytes("x")));
    EXPECT_EQ(Names(), "a");
  }
  EXPECT_EQ(Names(), "");
}

TEST_P(StorageConformanceTest, AbandonedObjectStays) {
  {
    ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a", {.lock = true}));
    EXPECT_OK(object->WriteAt(0, AsBytes("half")));
    object->Abandon();
    ASSERT_OK_AND_ASSIGN(auto lock, storage().TryLock("a"));
    EXPECT_NE(lock, nullptr);
  }
  EXPECT_EQ(Names(), "a");
  EXPECT_EQ(Get("a"), "half");
}

TEST_P(StorageConformanceTest, MissingObjects) {
  EXPECT_THAT(storage().Open("nope"), FailsWith("FILE_MISSING"));
  EXPECT_THAT(storage().TryLock("nope"), FailsWith("FILE_MISSING"));
  EXPECT_THAT(storage().Publish("nope", "b", PublishMode::kNew), FailsWith("FILE_MISSING"));
  EXPECT_THAT(storage().Publish("nope", "b", PublishMode::kReplace), FailsWith("FILE_MISSING"));
  EXPECT_THAT(storage().Rename("nope", "b"), FailsWith("FILE_MISSING"));
  EXPECT_OK(storage().Remove("nope"));
}

TEST_P(StorageConformanceTest, BadNamesAreRefusedEverywhere) {
  ASSERT_TRUE(Put("a", "x"));
  for (const std::string name : {"../a", "/a", ".", "", "-a", "a/b"}) {
    EXPECT_THAT(storage().Open(name), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().Create(name, {}), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().Publish("a", name, PublishMode::kNew), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().Publish(name, "b", PublishMode::kNew), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().Rename("a", name), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().Remove(name), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(storage().TryLock(name), FailsWith("BAD_NAME")) << name;
  }
  EXPECT_EQ(Names(), "a");
}

TEST_P(StorageConformanceTest, PublishNewWinsOnce) {
  ASSERT_TRUE(Put("1.tmp", "first"));
  ASSERT_TRUE(Put("2.tmp", "second"));
  ASSERT_OK_AND_ASSIGN(Published published, storage().Publish("1.tmp", "c", PublishMode::kNew));
  EXPECT_FALSE(published.replaced);
  const auto lost = storage().Publish("2.tmp", "c", PublishMode::kNew);
  EXPECT_THAT(lost, FailsWith("LOST_RACE"));
  EXPECT_EQ(lost.error().code, ErrorCode::kAlreadyExists);
  EXPECT_OK(storage().SyncNames());
  EXPECT_EQ(Get("c"), "first");
  EXPECT_EQ(Names(), "2.tmp c");
}

TEST_P(StorageConformanceTest, PublishReplaceKeepsTheOldUnderTheSourceName) {
  ASSERT_TRUE(Put("1.tmp", "first"));
  ASSERT_OK_AND_ASSIGN(Published made, storage().Publish("1.tmp", "c", PublishMode::kReplace));
  EXPECT_FALSE(made.replaced);
  ASSERT_TRUE(Put("2.tmp", "second"));
  ASSERT_OK_AND_ASSIGN(auto old_reader, storage().Open("c"));
  ASSERT_OK_AND_ASSIGN(Published replaced, storage().Publish("2.tmp", "c", PublishMode::kReplace));
  EXPECT_TRUE(replaced.replaced);
  EXPECT_EQ(Get("c"), "second");
  EXPECT_EQ(Get("2.tmp"), "first");
  Bytes out(5);
  EXPECT_OK(old_reader->ReadAt(0, out));
  EXPECT_EQ(AsText(out), "first");
}

TEST_P(StorageConformanceTest, OfManyNewPublishersOneWins) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Put(fmt::format("t{}", i), std::to_string(i)));
  }
  std::atomic<int> wins = 0;
  std::atomic<int> losses = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto result = storage().Publish(fmt::format("t{}", i), "c", PublishMode::kNew);
      ++(result.ok() ? wins : losses);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wins, 1);
  EXPECT_EQ(losses, 3);
}

TEST_P(StorageConformanceTest, OfManyOverwritersNoneIsLost) {
  constexpr int kWriters = 4;
  for (int i = 0; i < kWriters; ++i) {
    ASSERT_TRUE(Put(fmt::format("t{}", i), std::to_string(i)));
  }
  std::atomic<int> replaced = 0;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      const auto result = storage().Publish(fmt::format("t{}", i), "c", PublishMode::kReplace);
      failures += !result.ok();
      replaced += result.ok() && result->replaced;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(replaced, kWriters - 1);
  // Every content is still there once: under the final name, or as what an exchange returned.
  std::string contents = Get("c");
  for (int i = 0; i < kWriters; ++i) {
    const std::string text = Get(fmt::format("t{}", i));
    contents += text == "<FILE_MISSING>" ? "" : text;
  }
  std::sort(contents.begin(), contents.end());
  EXPECT_EQ(contents, "0123");
}

TEST_P(StorageConformanceTest, RenameAndRemove) {
  ASSERT_TRUE(Put("a", "x"));
  ASSERT_TRUE(Put("b", "y"));
  EXPECT_THAT(storage().Rename("a", "b"), FailsWith("LOST_RACE"));
  EXPECT_OK(storage().Rename("a", "c"));
  EXPECT_EQ(Names(), "b c");
  EXPECT_OK(storage().Remove("b"));
  EXPECT_OK(storage().SyncNames());
  EXPECT_EQ(Names(), "c");
  EXPECT_EQ(Get("c"), "x");
}

TEST_P(StorageConformanceTest, LockLivesUntilTheObjectIsDestroyedAndFollowsIt) {
  ASSERT_OK_AND_ASSIGN(auto object, storage().Create("a.tmp", {.lock = true}));
  const auto is_locked = [&](const std::string& name) {
    auto lock = storage().TryLock(name);
    return lock.ok() && *lock == nullptr;
  };
  EXPECT_TRUE(is_locked("a.tmp"));
  EXPECT_OK(object->WriteAt(0, AsBytes("x")));
  EXPECT_OK(object->Finish(1));
  EXPECT_TRUE(is_locked("a.tmp"));
  ASSERT_OK(storage().Publish("a.tmp", "a", PublishMode::kNew));
  EXPECT_TRUE(is_locked("a"));
  object.reset();
  EXPECT_FALSE(is_locked("a"));
  ASSERT_OK_AND_ASSIGN(auto lock, storage().TryLock("a"));
  ASSERT_NE(lock, nullptr);
  EXPECT_TRUE(is_locked("a"));
  lock.reset();
  EXPECT_FALSE(is_locked("a"));
}

TEST_P(StorageConformanceTest, ObjectsOutliveNothingTheyNeed) {
  EXPECT_FALSE(storage().description().empty());
  EXPECT_NE(storage().Identity(), 0u);
  ASSERT_TRUE(Put("a", "x"));
  ASSERT_OK_AND_ASSIGN(auto reader, storage().Open("a"));
  EXPECT_OK(storage().Remove("a"));
  Bytes out(1);
  EXPECT_OK(reader->ReadAt(0, out));
  EXPECT_EQ(AsText(out), "x");
}

}  // namespace
}  // namespace reshard::testing
