#include "reshard/format/pickle/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "reshard/format/pickle/document_builder_internal.h"
#include "reshard/format/pickle/opcodes_internal.h"
#include "reshard/format/pickle/window_internal.h"

namespace reshard::pickle {
namespace {

constexpr std::uint64_t kFreeMemory = 32ULL << 20;
constexpr std::uint64_t kMaxOffset = 1ULL << 47;
constexpr std::uint64_t kLongestName = 512;
constexpr std::uint64_t kSparseMemoCost = 64;

/// A name for a message: what a terminal would act on is replaced.
std::string Shown(std::string_view name) {
  std::string out(name.substr(0, kLongestName));
  for (char& c : out) {
    c = c >= 0x20 && c < 0x7f ? c : '?';
  }
  return out;
}

/// The memo: numbers come one after the other from every pickler, so most are places in a vector.
class Memo {
 public:
  void Put(std::uint32_t number, NodeId node) {
    if (number < dense_.size()) {
      dense_[number] = node;
    } else if (number == dense_.size() && sparse_.empty()) {
      dense_.push_back(node);
    } else {
      sparse_[number] = node;
    }
  }

  std::optional<NodeId> Get(std::uint32_t number) const {
    if (number < dense_.size()) {
      return dense_[number];
    }
    const auto found = sparse_.find(number);
    return found == sparse_.end() ? std::nullopt : std::optional(found->second);
  }

  std::uint64_t size() const { return dense_.size() + sparse_.size(); }

  std::uint64_t memory() const {
    return dense_.size() * sizeof(NodeId) + sparse_.size() * kSparseMemoCost;
  }

 private:
  GrowingArray<NodeId> dense_;
  std::unordered_map<std::uint32_t, NodeId> sparse_;
};

class Machine {
 public:
  Machine(ByteSource& source, const ParseOptions& options, std::uint64_t end)
      : options_(options),
        window_(source, options.begin, end),
        global_nodes_(options.globals.size(), kNoNode) {}

  Result<Parsed> Run();

 private:
  Status ReadProtocol();
  Status Step(std::uint8_t opcode);
  Status StepValue(std::uint8_t opcode);
  Status StepContainer(std::uint8_t opcode);
  Status StepOther(std::uint8_t opcode);
  Status Opcode();
  void Quick();
  const std::byte* QuickStep(const std::byte* p, std::uint64_t left);

  std::uint64_t Budget() const { return kFreeMemory + kMemoryPerByte * window_.taken(); }

  Status CheckBudget();
  Status Finish();

  /// Errors: kCorruption PICKLE_TRUNCATED, BAD_FRAME when the pickle or its frame ends before.
  Status Bound(std::uint64_t size) const;

  /// The same, and has the bytes ready to take.
  Status Need(std::uint64_t size) {
    RESHARD_TRY(Bound(size));
    return window_.Fill(size);
  }

  Result<std::uint64_t> Number(int bytes);  // little-endian, at most 8 bytes

  Status Frame();
  Status Integer(int bytes);
  Status Long(int length_bytes);
  Status Float();
  Status Text(int length_bytes);
  Status Payload(Kind kind, std::uint64_t size, int length_bytes);
  Status ByteString(int length_bytes);
  Status GlobalLines();
  Result<std::string> Line();
  Status StackGlobal();
  Status Resolve(std::string_view module, std::string_view name);
  Status Unknown(std::string_view module, std::string_view name);
  Status TupleOf(std::size_t count);
  Status TupleFromMark(Kind kind);
  Status Call(GlobalUse use);
  Status Build();
  Status One(bool pair);
  Status Many(std::uint8_t opcode);
  Status MemoPut(std::uint64_t number);
  Status MemoGet(std::uint64_t number);
  Status PopOne();
  Status PopMark();
  Status Persistent();
  Status ReadOnly();

  Status Push(Result<NodeId> node) {
    RESHARD_TRY_ASSIGN(const NodeId pushed, std::move(node));
    stack_.push_back(pushed);
    return OkStatus();
  }

  Status PushNode(NodeId node) {
    stack_.push_back(node);
    return OkStatus();
  }

  /// Values above the topmost mark.
  std::span<const NodeId> Stack() const { return {stack_.data(), stack_.size()}; }

  std::size_t Depth() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Status NeedStack(std::size_t count) const {
    return count <= Depth() ? OkStatus() : Status(Bad(kStackUnderflow, at_, "too few values"));
  }

  Status NeedMark() const {
    return marks_.empty() ? Status(Bad(kNoMark, at_, "there is no mark")) : OkStatus();
  }

  const ParseOptions& options_;
  Window window_;
  DocumentBuilder builder_;
  GrowingArray<NodeId> stack_;
  GrowingArray<std::uint64_t> marks_;  // stack sizes
  Memo memo_;
  std::vector<NodeId> global_nodes_;  // by place in options_.globals
  std::unordered_map<std::string, NodeId> unknown_nodes_;
  std::uint64_t at_ = 0;          // offset of the current opcode
  std::uint64_t frame_end_ = 0;   // 0: outside any frame
  std::uint64_t next_check_ = 0;  // bytes taken when the budget is looked at again
  std::size_t most_stack_ = 0;    // what was popped keeps its memory
  std::size_t most_marks_ = 0;
  int protocol_ = 0;
  bool stopped_ = false;
};

Status Machine::Bound(std::uint64_t size) const {
  if (size > window_.remaining()) {
    return Bad(kPickleTruncated, at_,
               fmt::format("{} bytes are needed, {} are left", size, window_.remaining()));
  }
  if (frame_end_ != 0 && size > frame_end_ - window_.offset()) {
    return Bad(kBadFrame, at_, fmt::format("the frame ends at byte {}, inside", frame_end_));
  }
  return OkStatus();
}

Result<std::uint64_t> Machine::Number(int bytes) {
  RESHARD_TRY(Need(static_cast<std::uint64_t>(bytes)));
  const std::byte* p = window_.Take(static_cast<std::uint64_t>(bytes));
  switch (bytes) {
    case 1:
      return std::to_integer<std::uint64_t>(*p);
    case 2:
      return LoadLittle<std::uint16_t>(p);
    case 4:
      return LoadLittle<std::uint32_t>(p);
    default:
      return LoadLittle<std::uint64_t>(p);
  }
}

Status Machine::ReadProtocol() {
  at_ = window_.offset();
  RESHARD_TRY(Need(2));
  const std::byte* p = window_.Take(2);
  protocol_ = std::to_integer<int>(p[1]);
  if (p[0] != std::byte{op::kProto} || protocol_ < 2 || protocol_ > 5) {
    return Bad(kBadProtocol, at_, "this does not begin like a pickle of protocol 2 to 5");
  }
  return OkStatus();
}

Status Machine::Frame() {
  RESHARD_TRY_ASSIGN(const std::uint64_t size, Number(8));
  if (size > window_.remaining()) {
    return Bad(kPickleTruncated, at_,
               fmt::format("a frame of {} bytes, but {} are left", size, window_.remaining()));
  }
  if (frame_end_ != 0) {
    return Bad(kBadFrame, at_, "a frame begins inside another one");
  }
  frame_end_ = size == 0 ? 0 : window_.offset() + size;
  return OkStatus();
}

Status Machine::Integer(int bytes) {
  RESHARD_TRY_ASSIGN(const std::uint64_t number, Number(bytes));
  const auto value = bytes == 4 ? static_cast<std::int64_t>(static_cast<std::int32_t>(number))
                                : static_cast<std::int64_t>(number);
  return PushNode(builder_.Int(value, at_));
}

Status Machine::Long(int length_bytes) {
  RESHARD_TRY_ASSIGN(const std::uint64_t size, Number(length_bytes));
  RESHARD_TRY(Bound(size));
  if (size > 8 && options_.keep_unknown) {
    return Payload(Kind::kLongInt, size, length_bytes);
  }
  if (size > 8) {
    return Bad(kBadInteger, at_, fmt::format("an integer of {} bytes, more than 8", size));
  }
  RESHARD_TRY(window_.Fill(size));
  const std::byte* p = window_.Take(size);
  std::uint64_t value = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    value |= std::to_integer<std::uint64_t>(p[i]) << (8 * i);
  }
  if (size > 0 && size < 8 && (p[size - 1] & std::byte{0x80}) != std::byte{}) {
    value |= ~std::uint64_t{0} << (8 * size);
  }
  return PushNode(builder_.Int(static_cast<std::int64_t>(value), at_));
}

Status Machine::Float() {
  RESHARD_TRY_ASSIGN(const std::uint64_t number, Number(8));
  return PushNode(builder_.Float(std::bit_cast<double>(__builtin_bswap64(number)), at_));
}

Status Machine::Text(int length_bytes) {
  RESHARD_TRY_ASSIGN(const std::uint64_t size, Number(length_bytes));
  if (size > kMaxInlineText) {
    return Payload(Kind::kLongText, size, length_bytes);
  }
  RESHARD_TRY(Need(size));
  const std::uint64_t head = 1 + static_cast<std::uint64_t>(length_bytes);
  return Push(builder_.Text(AsText({window_.Take(size), size}), at_, head));
}

Status Machine::Payload(Kind kind, std::uint64_t size, int length_bytes) {
  RESHARD_TRY(Bound(size));
  window_.Skip(size);
  return PushNode(builder_.InSource(kind, size, at_, 1 + static_cast<std::uint64_t>(length_bytes)));
}

Status Machine::ByteString(int length_bytes) {
  RESHARD_TRY_ASSIGN(const std::uint64_t size, Number(length_bytes));
  return Payload(Kind::kBytes, size, length_bytes);
}

Result<std::string> Machine::Line() {
  std::string line;
  while (true) {
    RESHARD_TRY(Need(1));
    const char c = static_cast<char>(*window_.Take(1));
    if (c == '\n') {
      return line;
    }
    if (line.size() >= kLongestName) {
      return Bad(kBadString, at_, "the name of a global is too long");
    }
    line += c;
  }
}

Status Machine::GlobalLines() {
  RESHARD_TRY_ASSIGN(const std::string module, Line());
  RESHARD_TRY_ASSIGN(const std::string name, Line());
  return Resolve(module, name);
}

Status Machine::StackGlobal() {
  RESHARD_TRY(NeedStack(2));
  const NodeId name = stack_[stack_.size() - 1];
  const NodeId module = stack_[stack_.size() - 2];
  if (builder_.kind(name) != Kind::kText || builder_.kind(module) != Kind::kText) {
    return Bad(kBadTarget, at_, "module and name of a global are no texts");
  }
  stack_.Shorten(stack_.size() - 2);
  return Resolve(builder_.TextOf(module), builder_.TextOf(name));
}

Status Machine::Resolve(std::string_view module, std::string_view name) {
  for (std::size_t i = 0; i < options_.globals.size(); ++i) {
    const GlobalRule& rule = options_.globals[i];
    if (rule.name == name && rule.module == module) {
      if (global_nodes_[i] == kNoNode) {
        global_nodes_[i] = builder_.Global(rule.number, rule.uses, at_);
      }
      return PushNode(global_nodes_[i]);
    }
  }
  if (options_.keep_unknown) {
    return Unknown(module, name);
  }
  return MakeError(ErrorCode::kUnsupported, kGlobalNotAllowed,
                   fmt::format("byte {}: the pickle names '{}.{}', which is not among the names "
                               "that this format needs; nothing of it was run",
                               at_, Shown(module), Shown(name)));
}

Status Machine::Unknown(std::string_view module, std::string_view name) {
  const std::string whole = fmt::format("{}.{}", module, name);
  const auto [found, is_new] = unknown_nodes_.try_emplace(whole, kNoNode);
  if (is_new) {
    RESHARD_TRY_ASSIGN(found->second, builder_.Unknown(whole, at_));
  }
  return PushNode(found->second);
}

Status Machine::TupleOf(std::size_t count) {
  RESHARD_TRY(NeedStack(count));
  const std::span<const NodeId> items = Stack().last(count);
  Result<NodeId> tuple = builder_.Tuple(Kind::kTuple, items, at_);
  stack_.Shorten(stack_.size() - count);
  return Push(std::move(tuple));
}

Status Machine::TupleFromMark(Kind kind) {
  RESHARD_TRY(NeedMark());
  const std::uint64_t mark = marks_.back();
  marks_.pop_back();
  Result<NodeId> made = builder_.Tuple(kind, Stack().subspan(mark), at_);
  stack_.Shorten(mark);
  return Push(std::move(made));
}

Status Machine::Call(GlobalUse use) {
  RESHARD_TRY(NeedStack(2));
  const NodeId args = stack_[stack_.size() - 1];
  const NodeId callable = stack_[stack_.size() - 2];
  stack_.Shorten(stack_.size() - 2);
  return Push(builder_.Object(callable, args, use, at_));
}

Status Machine::Build() {
  RESHARD_TRY(NeedStack(2));
  const NodeId state = stack_.back();
  stack_.pop_back();
  return builder_.SetState(stack_.back(), state, at_);
}

Status Machine::One(bool pair) {
  const std::size_t count = pair ? 2 : 1;
  RESHARD_TRY(NeedStack(count + 1));
  const std::span<const NodeId> items = Stack().last(count);
  const NodeId target = stack_[stack_.size() - count - 1];
  RESHARD_TRY(pair ? builder_.SetItems(target, items, at_) : builder_.Append(target, items, at_));
  stack_.Shorten(stack_.size() - count);
  return OkStatus();
}

Status Machine::Many(std::uint8_t opcode) {
  RESHARD_TRY(NeedMark());
  const std::uint64_t mark = marks_.back();
  marks_.pop_back();
  if (mark <= (marks_.empty() ? 0 : marks_.back())) {
    return Bad(kStackUnderflow, at_, "there is nothing below the mark");
  }
  const NodeId target = stack_[mark - 1];
  const std::span<const NodeId> items = Stack().subspan(mark);
  if (opcode == op::kSetItems) {
    RESHARD_TRY(builder_.SetItems(target, items, at_));
  } else if (opcode == op::kAppends) {
    RESHARD_TRY(builder_.Append(target, items, at_));
  } else {
    RESHARD_TRY(builder_.AddToSet(target, items, at_));
  }
  stack_.Shorten(mark);
  return OkStatus();
}

Status Machine::MemoPut(std::uint64_t number) {
  RESHARD_TRY(NeedStack(1));
  memo_.Put(static_cast<std::uint32_t>(number), stack_.back());
  return OkStatus();
}

Status Machine::MemoGet(std::uint64_t number) {
  const std::optional<NodeId> node = memo_.Get(static_cast<std::uint32_t>(number));
  if (!node) {
    return Bad(kBadMemo, at_, fmt::format("nothing has the number {} in the memo", number));
  }
  return PushNode(*node);
}

Status Machine::PopOne() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
    return OkStatus();
  }
  RESHARD_TRY(NeedStack(1));
  stack_.pop_back();
  return OkStatus();
}

Status Machine::PopMark() {
  RESHARD_TRY(NeedMark());
  stack_.Shorten(marks_.back());
  marks_.pop_back();
  return OkStatus();
}

Status Machine::Persistent() {
  if (!options_.persistent_ids) {
    return MakeError(ErrorCode::kUnsupported, kOpcodeNotAllowed,
                     fmt::format("byte {}: persistent ids are not allowed here", at_));
  }
  RESHARD_TRY(NeedStack(1));
  const NodeId id = stack_.back();
  stack_.pop_back();
  const NodeId name = options_.keep_unknown ? builder_.NameOfClass(id) : kNoNode;
  return name != kNoNode ? PushNode(name) : Push(builder_.Persistent(id, at_));
}

Status Machine::ReadOnly() {
  RESHARD_TRY(NeedStack(1));
  return builder_.kind(stack_.back()) == Kind::kBytes
             ? OkStatus()
             : Status(Bad(kBadTarget, at_, "what is made read-only is no bytes"));
}

Status Machine::StepValue(std::uint8_t opcode) {
  switch (opcode) {
    case op::kNone:
      return PushNode(builder_.None(at_));
    case op::kTrue:
    case op::kFalse:
      return PushNode(builder_.Bool(opcode == op::kTrue, at_));
    case op::kInt1:
      return Integer(1);
    case op::kInt2:
      return Integer(2);
    case op::kInt4:
      return Integer(4);
    case op::kLong1:
      return Long(1);
    case op::kLong4:
      return Long(4);
    case op::kFloat:
      return Float();
    case op::kText1:
      return Text(1);
    case op::kText4:
      return Text(4);
    case op::kText8:
      return Text(8);
    case op::kBytes1:
      return ByteString(1);
    case op::kBytes4:
      return ByteString(4);
    case op::kBytes8:
    case op::kByteArray8:
      return ByteString(8);
    default:
      return StepContainer(opcode);
  }
}

Status Machine::StepContainer(std::uint8_t opcode) {
  switch (opcode) {
    case op::kEmptyTuple:
      return PushNode(builder_.EmptyTuple(at_));
    case op::kTuple1:
    case op::kTuple2:
    case op::kTuple3:
      return TupleOf(opcode - op::kTuple1 + std::size_t{1});
    case op::kTuple:
      return TupleFromMark(Kind::kTuple);
    case op::kEmptyList:
      return PushNode(builder_.Empty(Kind::kList, at_));
    case op::kEmptyDict:
      return PushNode(builder_.Empty(Kind::kDict, at_));
    case op::kEmptySet:
      return PushNode(builder_.Empty(Kind::kSet, at_));
    case op::kFrozenSet:
      return TupleFromMark(Kind::kSet);
    case op::kAppend:
    case op::kSetItem:
      return One(opcode == op::kSetItem);
    case op::kAppends:
    case op::kSetItems:
    case op::kAddItems:
      return Many(opcode);
    default:
      return StepOther(opcode);
  }
}

Status Machine::StepOther(std::uint8_t opcode) {
  switch (opcode) {
    case op::kGlobal:
      return GlobalLines();
    case op::kStackGlobal:
      return StackGlobal();
    case op::kReduce:
      return Call(GlobalUse::kReduce);
    case op::kNewObject:
      return Call(GlobalUse::kNewObject);
    case op::kBuild:
      return Build();
    case op::kPop:
      return PopOne();
    case op::kPopMark:
      return PopMark();
    case op::kDup:
      RESHARD_TRY(NeedStack(1));
      return PushNode(NodeId{stack_.back()});
    case op::kPersistent:
      return Persistent();
    case op::kReadOnly:
      return ReadOnly();
    case op::kFrame:
      return Frame();
    default:
      return MakeError(ErrorCode::kUnsupported, kOpcodeNotAllowed,
                       fmt::format("byte {}: opcode {:#04x} is not among those that this reader "
                                   "takes; nothing was run",
                                   at_, opcode));
  }
}

Status Machine::Step(std::uint8_t opcode) {
  switch (opcode) {  // the most frequent first
    case op::kGet1:
    case op::kGet4: {
      RESHARD_TRY_ASSIGN(const std::uint64_t number, Number(opcode == op::kGet1 ? 1 : 4));
      return MemoGet(number);
    }
    case op::kMemoize:
      if (memo_.size() >= kNoNode) {
        return Bad(kLimit, at_, "the memo is full");
      }
      return MemoPut(memo_.size());
    case op::kPut1:
    case op::kPut4: {
      RESHARD_TRY_ASSIGN(const std::uint64_t number, Number(opcode == op::kPut1 ? 1 : 4));
      return MemoPut(number);
    }
    case op::kMark:
      marks_.push_back(stack_.size());
      return OkStatus();
    case op::kStop:
      return Finish();
    default:
      return StepValue(opcode);
  }
}

/// Does the opcode at `p` when it is one of those that most of a pickle consists of, lies whole in
/// the `left` bytes and is right; returns what follows, else `p`.
const std::byte* Machine::QuickStep(const std::byte* p, std::uint64_t left) {
  const auto opcode = std::to_integer<std::uint8_t>(*p);
  switch (opcode) {
    case op::kGet1:
    case op::kGet4: {
      const std::uint64_t size = opcode == op::kGet1 ? 2 : 5;
      if (left < size) {
        return p;
      }
      const std::optional<NodeId> node = memo_.Get(size == 2 ? std::to_integer<std::uint32_t>(p[1])
                                                             : LoadLittle<std::uint32_t>(p + 1));
      if (!node) {
        return p;
      }
      stack_.push_back(*node);
      return p + size;
    }
    case op::kInt1:
      if (left < 2) {
        return p;
      }
      stack_.push_back(builder_.Int(std::to_integer<std::int64_t>(p[1]), at_));
      return p + 2;
    case op::kInt2:
      if (left < 3) {
        return p;
      }
      stack_.push_back(builder_.Int(LoadLittle<std::uint16_t>(p + 1), at_));
      return p + 3;
    case op::kEmptyTuple:
      stack_.push_back(builder_.EmptyTuple(at_));
      return p + 1;
    case op::kEmptyDict:
    case op::kEmptyList:
      stack_.push_back(builder_.Empty(opcode == op::kEmptyDict ? Kind::kDict : Kind::kList, at_));
      return p + 1;
    case op::kMemoize:
      if (Depth() == 0 || memo_.size() >= kNoNode) {
        return p;
      }
      memo_.Put(static_cast<std::uint32_t>(memo_.size()), stack_.back());
      return p + 1;
    case op::kNone:
      stack_.push_back(builder_.None(at_));
      return p + 1;
    case op::kTrue:
    case op::kFalse:
      stack_.push_back(builder_.Bool(opcode == op::kTrue, at_));
      return p + 1;
    case op::kMark:
      marks_.push_back(stack_.size());
      return p + 1;
    default:
      return p;
  }
}

/// Runs as many quick opcodes as come. All others, and all errors, are left to Opcode.
void Machine::Quick() {
  const ByteSpan ahead = window_.ahead();
  const std::uint64_t begin = window_.offset();
  std::uint64_t size = std::min<std::uint64_t>(ahead.size(), window_.remaining());
  if (frame_end_ != 0) {
    size = std::min(size, frame_end_ - begin);
  }
  const std::byte* p = ahead.data();
  const std::byte* const end = p + size;
  while (p != end) {
    at_ = begin + static_cast<std::uint64_t>(p - ahead.data());
    const std::byte* next = QuickStep(p, static_cast<std::uint64_t>(end - p));
    if (next == p) {
      break;
    }
    p = next;
  }
  window_.Take(static_cast<std::uint64_t>(p - ahead.data()));
}

Status Machine::CheckBudget() {
  most_stack_ = std::max(most_stack_, stack_.size());
  most_marks_ = std::max(most_marks_, marks_.size());
  const std::uint64_t memory = builder_.memory() + memo_.memory() + most_stack_ * sizeof(NodeId) +
                               most_marks_ * sizeof(std::uint64_t);
  if (memory > Budget() || builder_.full()) {
    return Bad(kLimit, at_,
               fmt::format("{} bytes of opcodes need {} bytes of memory, more than {} for each",
                           window_.taken(), memory, kMemoryPerByte));
  }
  return OkStatus();
}

Status Machine::Opcode() {
  constexpr std::uint64_t kCheckEvery = std::uint64_t{64} * 1024;
  at_ = window_.offset();
  if (frame_end_ == at_) {
    frame_end_ = 0;
  }
  if (window_.remaining() == 0) {
    return Bad(kNoStop, at_, "the pickle ends without STOP");
  }
  if (window_.taken() >= next_check_) {
    RESHARD_TRY(CheckBudget());
    next_check_ = window_.taken() + kCheckEvery;
  }
  RESHARD_TRY(window_.Fill(1));
  return Step(std::to_integer<std::uint8_t>(*window_.Take(1)));
}

Status Machine::Finish() {
  RESHARD_TRY(NeedStack(1));
  if (stack_.size() != 1 || !marks_.empty()) {
    return Bad(kTrailing, at_, "values are left over at the end");
  }
  if (frame_end_ != 0 && frame_end_ != window_.offset()) {
    return Bad(kBadFrame, at_, fmt::format("STOP, but the frame ends at byte {}", frame_end_));
  }
  if (!options_.allow_trailing && window_.remaining() != 0) {
    return Bad(kTrailing, window_.offset(),
               fmt::format("{} bytes follow the end of the pickle", window_.remaining()));
  }
  stopped_ = true;
  return OkStatus();
}

Result<Parsed> Machine::Run() {
  RESHARD_TRY(ReadProtocol());
  while (!stopped_) {
    Quick();
    RESHARD_TRY(Opcode());
  }
  RESHARD_TRY(CheckBudget());
  Parsed parsed;
  parsed.protocol = protocol_;
  parsed.end = window_.offset();
  const NodeId root = stack_.back();
  stack_ = {};
  marks_ = {};
  memo_ = {};
  RESHARD_TRY_ASSIGN(parsed.document, std::move(builder_).Finish(root, Budget()));
  return parsed;
}

}  // namespace

Result<Parsed> Parse(ByteSource& source, const ParseOptions& options) {
  const std::uint64_t size = source.size();
  if (options.begin > size || options.size > size - options.begin || size > kMaxOffset) {
    return Bad(
        kPickleTruncated, options.begin,
        fmt::format("a pickle of {} bytes is expected, the file has {}", options.size, size));
  }
  const std::uint64_t end = options.size == 0 ? size : options.begin + options.size;
  return Machine(source, options, end).Run();
}

}  // namespace reshard::pickle
