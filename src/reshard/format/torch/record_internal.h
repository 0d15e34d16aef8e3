#pragma once

// What reading records shares.

#include "reshard/base/byte_source.h"
#include "reshard/format/pickle/document.h"
#include "reshard/format/torch/record.h"
#include "reshard/format/zip/archive.h"

namespace reshard::torch {

/// Opens a record's archive and checks what kind of archive it is. Errors: as ReadTensorRecord.
Result<zip::Archive> OpenRecord(ByteSource& source, ByteRange record);

/// A pickled value, or the name of what in it is no plain value.
struct PlainValue {
  Value value;
  std::string odd;  ///< Empty: `value` is all of it.
};

/// Reads a plain value; `source` holds the pickle. Errors: kCorruption LIMIT when shared parts
/// expand to far more than the pickle; kIo.
Result<PlainValue> ReadPlain(const pickle::Document& document, ByteSource& source);

/// Reads ahead, so that many records that lie side by side cost few reads: a window of the source,
/// larger the longer reading goes on without gaps. Not thread-safe.
class RecordWindow final : public ByteSource {
 public:
  explicit RecordWindow(ByteSource& source) : source_(source) {}

  std::uint64_t size() const override { return source_.size(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override;

 private:
  ByteSource& source_;
  std::uint64_t begin_ = 0;
  std::uint64_t next_size_ = 4096;
  Bytes bytes_;
};

}  // namespace reshard::torch
