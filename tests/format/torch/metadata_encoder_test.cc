#include <gtest/gtest.h>

#include <string>

#include "reshard/format/torch/metadata.h"
#include "tests/support/hex.h"

namespace reshard::torch {
namespace {

using reshard::testing::ToHex;

std::string Short(std::string_view text) {
  return "8c" + ToHex(AsBytes(std::string(1, static_cast<char>(text.size())) + std::string(text)));
}

TEST(TorchMetadataEncoderTest, OneTensorIsThesePicklesOpcodes) {
  Metadata metadata;
  metadata.files = {"f"};
  MetadataTensor& tensor = metadata.tensors.emplace_back();
  tensor.key = "w.0";
  tensor.path = Path{PathPart("w"), PathPart(ListIndex{0})};
  tensor.dtype = DType::kFloat32;
  tensor.shape = {300};
  tensor.chunks.push_back({Box{{0}, {300}}, {0, {70000, std::uint64_t{1} << 32}, false}});
  const std::string m = Short("torch.distributed.checkpoint.metadata");
  const std::string memo = "94";
  // A global is a module, a name, STACK_GLOBAL, MEMOIZE; an object () NEWOBJ, {} MARK ... SETITEMS
  // BUILD. Numbers in comments are the memo's.
  const std::string begin =
      "2981"
      "7d28";
  const std::string end = "7562";
  const std::string expected =
      "8004" + m + Short("Metadata") + "93" + memo /*0*/ + begin +                         //
      Short("state_dict_metadata") + memo /*1*/ + "7d28" + Short("w.0") + memo /*2*/ +     //
      m + Short("TensorStorageMetadata") + "93" + memo /*3*/ + begin +                     //
      Short("properties") + memo /*4*/ +                                                   //
      m + Short("TensorProperties") + "93" + memo /*5*/ + "2981" + "28" +                  //
      Short("torch") + Short("float32") + "93" + memo /*6*/ +                              //
      Short("torch.serialization") + Short("_get_layout") + "93" + memo /*7*/ +            //
      Short("torch.strided") + "8552" + memo /*8*/ + "89" +                                //
      m + Short("_MEM_FORMAT_ENCODING") + "93" + memo /*9*/ + "4b008552" + memo /*10*/ +   //
      "89" + "7462" + memo /*11*/ +                                                        //
      Short("size") + memo /*12*/ + Short("torch") + Short("Size") + "93" + memo /*13*/ +  //
      "284d2c01748552" + Short("chunks") + memo /*14*/ + "5d28" +                          //
      m + Short("ChunkStorageMetadata") + "93" + memo /*15*/ + begin +                     //
      Short("offsets") + memo /*16*/ + "680d" + "284b00748552" +                           //
      Short("sizes") + memo /*17*/ + "680d" + "284d2c01748552" + end +                     //
      "65" + end + "75" +                                                                  //
      Short("planner_data") + memo /*18*/ + "7d28" + "6802" + "28" + Short("w") +          //
      memo /*19*/ + "4b00" + "74" + "75" +                                                 //
      Short("storage_data") + memo /*20*/ + "7d28" +                                       //
      m + Short("MetadataIndex") + "93" + memo /*21*/ + begin +                            //
      Short("fqn") + memo /*22*/ + "6802" + Short("index") + memo /*23*/ + "4b00" +        //
      Short("offset") + memo /*24*/ + "680d" + "284b00748552" + end +                      //
      Short("torch.distributed.checkpoint.filesystem") + Short("_StorageInfo") + "93" +    //
      memo /*25*/ + begin + Short("relative_path") + memo /*26*/ +                         //
      Short("f") + memo /*27*/ + "6818" + "4a70110100" +                                   //
      Short("length") + memo /*28*/ + "8a050000000001" + end + "75" + end + "2e";
  EXPECT_EQ(ToHex(EncodeMetadata(metadata)), expected);
}

TEST(TorchMetadataEncoderTest, WithoutEntriesItIsThreeEmptyDicts) {
  const std::string hex = ToHex(EncodeMetadata({}));
  EXPECT_NE(hex.find(Short("state_dict_metadata") + "947d" + Short("planner_data") + "947d" +
                     Short("storage_data") + "947d" + "75622e"),
            std::string::npos);
}

TEST(TorchMetadataEncoderTest, ScalarsAndIntegerKeysAndObjects) {
  Metadata metadata;
  metadata.files = {"f"};
  MetadataTensor& tensor = metadata.tensors.emplace_back();
  tensor.key = "s";
  tensor.path = Path{PathPart("s")};
  tensor.chunks.push_back({Box{}, {0, {0, 1}, false}});
  MetadataBytes& object = metadata.bytes.emplace_back();
  object.key = "o.5";
  object.path = Path{PathPart("o"), PathPart(std::int64_t{5})};
  object.place = {0, {1, 2}, false};
  const std::string hex = ToHex(EncodeMetadata(metadata));
  EXPECT_NE(hex.find(Short("size") + "94" + Short("torch") + Short("Size") + "9394" + "298552"),
            std::string::npos)
      << "the shape of a scalar is ()";
  EXPECT_NE(hex.find(Short("BytesStorageMetadata") + "9394" + "2981" + "75"), std::string::npos)
      << "objects have no state";
  EXPECT_NE(hex.find("28" + Short("o") + "94" + Short("5") + "9474"), std::string::npos)
      << "integer keys are text";
}

}  // namespace
}  // namespace reshard::torch
