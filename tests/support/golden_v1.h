#pragma once

// The snapshot of tests/golden/v1: catalog and data file made from nothing but the format layer.
// The files were written once by make_golden_v1.cc and never change; this code shows what is in
// them, and that today's encoder still makes the same bytes.

#include "reshard/catalog/catalog.h"
#include "reshard/catalog/cbor.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/data_file.h"

namespace reshard::testing {

/// Snapshot 7 of one rank: "step", a uint64 scalar; "model.w", float32 (2, 3) in two chunks, and
/// its alias "model.w_tied"; "odd@key", float4 (2, 2); "none", int8 (0, 2); three objects.
class GoldenV1 {
 public:
  /// The data file's bytes.
  static Bytes DataFile() {
    const Bytes payload = Payload();
    const Catalog fragment = Make(CatalogKind::kFragment, PayloadOffset(), 0, LinearW());
    const native::Head head = {7, 0, 0, PayloadOffset() + payload.size(), PayloadOffset(), 0};
    Bytes out = native::EncodeHeader(Entries(), head, native::EncodeCatalog(fragment));
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
  }

  /// The commit record's bytes.
  static Bytes CatalogFile() {
    const Bytes file = DataFile();
    const std::uint64_t head = Crc64(ByteSpan(file).first(native::kHeadBytes));
    return native::EncodeCatalog(
        Make(CatalogKind::kSnapshot, PayloadOffset(), head, LinearW() ^ Crc64Constant(24)));
  }

 private:
  /// In file order: by falling element size, then key, then box.
  static Bytes Payload() {
    Bytes out;
    AppendLittle(out, std::uint64_t{1000});  // step
    for (const float value : {1.0F, 2.0F, 4.0F, 5.0F, 3.0F, 6.0F}) {
      AppendLittle(out, value);  // model.w: columns 0 and 1, then column 2
    }
    out.push_back(std::byte{0x21});  // odd@key: a row of two elements a byte
    out.push_back(std::byte{0x43});
    return out;
  }

  /// Linear part of the whole of model.w.
  static std::uint64_t LinearW() {
    Bytes string;
    for (const float value : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}) {
      AppendLittle(string, value);
    }
    return Crc64Linear(string);
  }

  static const Box& WLeft() {
    static const Box box{{0, 0}, {2, 2}};
    return box;
  }

  static const Box& WRight() {
    static const Box box{{0, 2}, {2, 1}};
    return box;
  }

  static std::vector<native::HeaderEntry> Entries() {
    static const Shape w = {2, 3};
    static const Shape odd = {2, 2};
    static const Box whole_odd = WholeBox(odd);
    static const Box scalar;
    return {{"step", DType::kUint64, {}, scalar, 0},
            {"model.w", DType::kFloat32, w, WLeft(), 8},
            {"model.w", DType::kFloat32, w, WRight(), 24},
            {"odd@key", DType::kFloat4E2m1, odd, whole_odd, 32}};
  }

  static std::uint64_t PayloadOffset() {
    // The fragment's size does not depend on the values in it.
    const Bytes fragment = native::EncodeCatalog(Make(CatalogKind::kFragment, 4096, 0, 0));
    return native::HeaderSize(Entries(), fragment.size()).value();
  }

  static Catalog Make(CatalogKind kind, std::uint64_t at, std::uint64_t head, std::uint64_t w) {
    const Bytes payload = Payload();
    const ByteSpan bytes = payload;
    const bool fragment = kind == CatalogKind::kFragment;
    const auto digest = [&](ByteSpan part) { return fragment ? Crc64Linear(part) : Crc64(part); };
    const std::vector<std::uint64_t> blocks = {Crc64(payload)};
    CatalogBuilder builder({.kind = kind, .unique_id = 7});
    builder.AddFile({"0_7.safetensors", 0, at + payload.size(), at, head, 0, true}, blocks);
    builder.AddTensor("model.w", {"model", "w"}, DType::kFloat32, Shape{2, 3}, w);
    builder.AddChunk(WLeft(), 0, at + 8);
    builder.AddChunk(WRight(), 0, at + 24);
    builder.AddTensor("odd@key", {"odd@key"}, DType::kFloat4E2m1, Shape{2, 2},
                      digest(bytes.subspan(32)));
    builder.AddChunk(WholeBox(Shape{2, 2}), 0, at + 32);
    builder.AddTensor("step", {"step"}, DType::kUint64, Shape{}, digest(bytes.first(8)));
    builder.AddChunk(Box{}, 0, at);
    if (!fragment) {
      builder.AddTensor("model.w_tied", {"model", "w_tied"}, DType::kFloat32, Shape{2, 3}, w,
                        "model.w");
      builder.AddTensor("none", {"none"}, DType::kInt8, Shape{0, 2}, 0);
      builder.AddObject("lr", {"lr"}, -1, EncodeObject(0.5));
      builder.AddObject("opt.0", {"opt", std::int64_t{0}}, -1,
                        EncodeObject(Value::List{Value(), true, "text", Bytes(2, std::byte{9})}));
      builder.AddObject("rng", {"rng"}, 0, EncodeObject(-10));
    }
    return std::move(builder).Build().value();
  }
};

}  // namespace reshard::testing
