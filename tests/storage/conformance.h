#pragma once

// The tests that every storage backend passes. A backend registers with
//   INSTANTIATE_TEST_SUITE_P(Mine, StorageConformanceTest, ::testing::Values(&MakeMine));

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard::testing {

/// A fresh empty store and what it lives in.
struct StorageFixture {
  std::shared_ptr<void> owned;  ///< Destroyed after `storage`.
  std::unique_ptr<Storage> storage;
};

using StorageFactory = StorageFixture (*)();

class StorageConformanceTest : public ::testing::TestWithParam<StorageFactory> {
 protected:
  void SetUp() override {
    fixture_ = GetParam()();
    ASSERT_NE(fixture_.storage, nullptr);
  }

  void TearDown() override { fixture_.storage.reset(); }

  Storage& storage() { return *fixture_.storage; }

  /// Writes a finished object; false on any error.
  bool Put(const std::string& name, std::string_view text);

  /// The content of an object, or "<reason>".
  std::string Get(const std::string& name);

  /// Names in List(), joined with ' '.
  std::string Names();

 private:
  StorageFixture fixture_;
};

/// A folder of its own on the disk, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace reshard::testing
