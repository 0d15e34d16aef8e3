#pragma once

// Reading of pickled data files, for ReadDataFile and DecodePickleText.

#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/format/paddle/data_file.h"
#include "reshard/format/paddle/numpy_arrays_internal.h"

namespace reshard::paddle {

/// A data file and, when it is encoded, its payloads in the order of the decoded arrays.
struct PickledFile {
  DataFile file;
  std::vector<Segment> segments;
};

/// Errors: as ReadDataFile.
Result<PickledFile> ReadPickledFile(ByteSource& source);

}  // namespace reshard::paddle
