#pragma once

// Storage in memory, for tests and for programs that checkpoint into RAM.

#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// A new empty store. Several ranks (threads) may share it through pointers.
std::unique_ptr<Storage> NewMemoryStorage(std::string description = "memory");

}  // namespace reshard
