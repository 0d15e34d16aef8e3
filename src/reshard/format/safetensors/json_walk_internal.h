#pragma once

// Walks a JSON text as a stream of events, for the small documents around safetensors files. Strict
// (nlohmann's parser does not recurse), and unknown parts are passed over in no memory.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"

namespace reshard::safetensors {

/// Deepest nesting of a document.
inline constexpr std::size_t kMaxJsonDepth = 16;

/// Calls back with what stands where. `keys()[i]` is the current key of the i-th container around a
/// value, empty in a list. A callback returns false after Fail.
class JsonWalk : public nlohmann::json::json_sax_t {
 public:
  std::optional<Error> error;

  /// Parses. False: see `error`.
  bool Run(std::string_view text) { return nlohmann::json::sax_parse(text, this) && !error; }

  // The parser's events.
  bool null() final { return OnOther(); }

  bool boolean(bool /*value*/) final { return OnOther(); }

  bool number_integer(std::int64_t /*value*/) final { return OnOther(); }

  bool number_float(double /*value*/, const std::string& /*text*/) final { return OnOther(); }

  bool number_unsigned(std::uint64_t value) final { return OnNumber(value); }

  bool string(std::string& text) final { return OnText(text); }

  bool binary(nlohmann::json::binary_t& /*value*/) final { return OnOther(); }

  bool start_object(std::size_t /*elements*/) final { return Begin(true); }

  bool start_array(std::size_t /*elements*/) final { return Begin(false); }

  bool end_object() final { return End(); }

  bool end_array() final { return End(); }

  bool key(std::string& text) final {
    keys_.back() = std::move(text);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*what*/) final {
    return Fail(syntax_reason(), "no JSON at byte " + std::to_string(position));
  }

 protected:
  virtual bool OnText(std::string& text) = 0;
  virtual bool OnNumber(std::uint64_t number) = 0;
  /// null, a boolean, a number that is negative or has a fraction.
  virtual bool OnOther() = 0;
  /// Called when it is the current container: keys() ends with its own, still empty, key.
  virtual bool OnBegin(bool object) = 0;

  virtual bool OnEnd() { return true; }

  /// The reason of what is no JSON.
  virtual std::string_view syntax_reason() const = 0;

  const std::vector<std::string>& keys() const { return keys_; }

  bool Fail(std::string_view reason, std::string message) {
    error = Error{ErrorCode::kCorruption, std::string(reason), std::move(message), false, false};
    return false;
  }

 private:
  bool Begin(bool object) {
    if (keys_.size() == kMaxJsonDepth) {
      return Fail("DEPTH", "the JSON is nested too deeply");
    }
    keys_.emplace_back();
    return OnBegin(object);
  }

  bool End() {
    const bool good = OnEnd();
    keys_.pop_back();
    return good;
  }

  std::vector<std::string> keys_;
};

}  // namespace reshard::safetensors
