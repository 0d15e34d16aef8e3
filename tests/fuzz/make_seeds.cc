// Writes the seeds of the fuzz targets catalog, data_file, safetensors and safetensors_index into
// the folders of CORPUS. What fuzzers find later is added by hand beside them.

#include <fstream>
#include <iostream>
#include <string>

#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/data_file.h"
#include "reshard/format/safetensors/index.h"
#include "reshard/format/safetensors/writer.h"
#include "tests/support/catalog_bytes.h"
#include "tests/support/document_catalog.h"
#include "tests/support/golden_v1.h"
#include "tests/support/small_catalog.h"

namespace reshard::testing {
namespace {

bool WriteSeed(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << AsText(bytes);
  return static_cast<bool>(out.flush());
}

Bytes Index() {
  CatalogBuilder builder({.kind = CatalogKind::kIndex, .format = "torch"});
  builder.AddFile({"__0_0.distcp", 0, 100, 0, 0, 12345, false}, {});
  builder.AddTensor("t", {"t", ListIndex{3}}, DType::kComplex64, Shape{2, 3}, std::nullopt);
  builder.AddChunk(WholeBox(Shape{2, 3}), 0, 20, ChunkOrder::kColumnMajor);
  return native::EncodeCatalog(std::move(builder).Build().value());
}

Bytes FragmentOf(const Catalog& catalog) {
  CatalogColumns columns = catalog.columns();
  columns.info.kind = CatalogKind::kFragment;
  return native::EncodeCatalog(Catalog::Create(std::move(columns)).value());
}

/// A header of more than 4096 bytes.
Bytes LongHeader() {
  const Bytes fragment = FragmentOf(SmallCatalog());
  const Shape shape = {4, 3};
  const Box box = WholeBox(shape);
  const std::string key(3000, 'k');
  const native::HeaderEntry entry = {key, DType::kFloat32, shape, box, 0};
  const std::uint64_t size = native::HeaderSize({&entry, 1}, fragment.size()).value();
  return native::EncodeHeader({&entry, 1}, {7, 1, 0, size + 48, size, 0}, fragment);
}

Bytes OptionalSection() {
  Bytes bytes = native::EncodeCatalog(SmallCatalog());
  AddSection(bytes, native::kOptionalSection | 1, Bytes(5, std::byte{1}));
  return bytes;
}

Bytes Safetensors() {
  const Shape shape = {2, 4};
  const Shape empty = {0};
  const safetensors::WriteEntry entries[] = {{"layer.w", DType::kFloat32, shape},
                                             {"f4", DType::kFloat4E2m1, shape},
                                             {"none", DType::kBool, empty}};
  Bytes bytes = safetensors::EncodeHeader(entries).value();
  bytes.resize(bytes.size() + 36, std::byte{1});
  return bytes;
}

/// As PyTorch DCP writes it.
Bytes Sharded() {
  constexpr std::string_view kJson =
      R"({"__metadata__":{"format":"pt","DCP_SHARDING_INFO":"{\"a\": {\"saved_offsets\": [0, 2]}}"},)"
      R"("a":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]}})";
  Bytes bytes;
  AppendLittle(bytes, static_cast<std::uint64_t>(kJson.size()));
  const ByteSpan text = AsBytes(kJson);
  bytes.insert(bytes.end(), text.begin(), text.end());
  bytes.resize(bytes.size() + 2);
  return bytes;
}

Bytes SetIndexText(std::string_view more) {
  std::string text = safetensors::EncodeIndex({{"f-1", "f-2"}, {{"a", 0}, {"b", 1}}, 12});
  text.insert(1, more);
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

bool WriteSafetensors(const std::string& corpus) {
  const std::string file = corpus + "/safetensors/";
  const std::string index = corpus + "/safetensors_index/";
  return WriteSeed(file + "tensors", Safetensors()) && WriteSeed(file + "sharded", Sharded()) &&
         WriteSeed(index + "plain", SetIndexText("")) &&
         WriteSeed(index + "more", SetIndexText(R"("x": [1, {"y": null}, -1.5, "\u00e9"],)"));
}

bool WriteSeeds(const std::string& corpus) {
  const std::string catalog = corpus + "/catalog/";
  const std::string data_file = corpus + "/data_file/";
  return WriteSeed(catalog + "empty", native::EncodeCatalog(CatalogBuilder({}).Build().value())) &&
         WriteSeed(catalog + "small", native::EncodeCatalog(SmallCatalog())) &&
         WriteSeed(catalog + "document", native::EncodeCatalog(DocumentCatalog())) &&
         WriteSeed(catalog + "golden", GoldenV1::CatalogFile()) &&
         WriteSeed(catalog + "fragment", FragmentOf(DocumentCatalog())) &&
         WriteSeed(catalog + "index", Index()) &&
         WriteSeed(catalog + "optional_section", OptionalSection()) &&
         WriteSeed(data_file + "golden", GoldenV1::DataFile()) &&
         WriteSeed(data_file + "long_header", LongHeader()) && WriteSafetensors(corpus);
}

}  // namespace
}  // namespace reshard::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: reshard_make_seeds CORPUS\n";
    return 2;
  }
  return reshard::testing::WriteSeeds(argv[1]) ? 0 : 2;
}
