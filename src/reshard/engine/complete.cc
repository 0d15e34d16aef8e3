#include "reshard/engine/complete.h"

#include "reshard/engine/data_file_opener.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

Status CheckComplete(Storage& storage, const Catalog& catalog) {
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    RESHARD_TRY(catalog.CheckCoverage(tensor));
  }
  for (std::uint32_t file = 0; file < catalog.files().size(); ++file) {
    RESHARD_TRY(OpenDataFile(storage, catalog, file));
  }
  return OkStatus();
}

Result<Catalog> OpenOnce(Storage& storage, std::uint64_t unique_id) {
  RESHARD_TRY_ASSIGN(Catalog catalog, ReadCatalog(storage, unique_id));
  RESHARD_TRY(CheckComplete(storage, catalog));
  return catalog;
}

}  // namespace

bool IsIncomplete(const Error& error) {
  // A pickle that names what no checkpoint does is not whole either, be it a flipped byte or not.
  const bool refused = error.reason == "GLOBAL_NOT_ALLOWED" || error.reason == "OPCODE_NOT_ALLOWED";
  return error.code == ErrorCode::kNotFound || error.code == ErrorCode::kCorruption || refused;
}

Result<Catalog> OpenComplete(Storage& storage, const ForeignRef& ref) {
  RESHARD_TRY_ASSIGN(ForeignCheckpoint opened, OpenForeign(storage, ref));
  if (!opened.content.faults.empty()) {
    return tl::unexpected<Error>(FirstFault(opened.content.faults));
  }
  RESHARD_TRY(CheckComplete(storage, opened.content.catalog));
  return std::move(opened.content.catalog);
}

Result<Catalog> OpenComplete(Storage& storage, std::uint64_t unique_id) {
  const std::string name = native::CatalogName(unique_id);
  const Result<Bytes> before = ReadWhole(storage, name);
  Result<Catalog> first = OpenOnce(storage, unique_id);
  if (first.ok() || !IsIncomplete(first.error()) || !before.ok()) {
    return first;
  }
  // An overwrite removes the files of the catalog that it replaced.
  const Result<Bytes> after = ReadWhole(storage, name);
  return after.ok() && *after != *before ? OpenOnce(storage, unique_id) : first;
}

}  // namespace reshard
