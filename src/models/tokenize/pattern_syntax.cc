// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pattern_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/tokenize/error.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kMaxBytes = 8192;
constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                                            "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                            "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs"};

// Replaces the functions of <cctype>, because those depend on the locale that a program sets.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_punctuation(char c) { return kPunctuation.find(c) != std::string_view::npos; }

class Rewriter {
 public:
  explicit Rewriter(std::string_view regex) : rest_(regex) {}

  std::string rewrite() {
    while (!rest_.empty()) {
      if (take("\\")) {
        escape();
      } else if (take("[")) {
        character_class();
      } else if (take("(")) {
        open_group();
      } else if (take(")")) {
        if (caseless_.size() > 1) caseless_.pop_back();
        out_ += ')';
      } else if (take("{")) {
        interval();
      } else if (take("$")) {
        out_ += "(?=\\n|\\z)";  // in Ruby, $ matches before every line feed
      } else if (rest_.front() == '^') {
        refuse("'^' outside of [] is not supported");
      } else {
        copy();
      }
    }
    return out_;
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void copy() {
    out_ += rest_.front();
    rest_.remove_prefix(1);
  }

  /// Rewrites an escape sequence such as \s, inside or outside of a character class. The caller has already read the
  /// backslash.
  void escape() {
    if (rest_.empty()) refuse("a '\\' at the end");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    switch (c) {
      case 's': out_ += "\\p{White_Space}"; return;
      case 'S': out_ += "\\P{White_Space}"; return;
      case 'd': out_ += "\\p{Nd}"; return;
      case 'D': out_ += "\\P{Nd}"; return;
      case 'n': out_ += "\\n"; return;
      case 'r': out_ += "\\r"; return;
      case 't': out_ += "\\t"; return;
      case 'f': out_ += "\\f"; return;
      case 'v': out_ += "\\x{b}"; return;
      case 'p':
      case 'P': property(c); return;
      case 'x': out_ += fmt::format("\\x{{{:x}}}", take("{") ? braced_hex() : hex(2, 0x7F)); return;
      case 'u': out_ += fmt::format("\\x{{{:x}}}", hex(4, 0xFFFF)); return;
      default: break;
    }
    if (!is_punctuation(c)) refuse("'\\{}' is not supported", io::printable({&c, 1}));
    out_ += {'\\', c};
  }

  void property(char p) {
    const std::size_t end = rest_.find('}');
    if (!take("{") || end == std::string_view::npos) refuse("a '\\{}' without a name in braces", p);
    const std::string name(rest_.substr(0, end - 1));
    rest_.remove_prefix(end);
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    });
    if (!plain) refuse("'\\{}{{{}}}' is not supported", p, io::printable(name));
    const bool category = std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
    if (caseless_.back() && (name == "Lu" || name == "Ll" || name == "Lt")) {
      refuse("'\\{}{{{}}}' inside of '(?i:' is not supported", p, name);
    }
    // "sc:" selects only characters that belong to this script alone. Without it, PCRE2 would also select characters
    // that several scripts share.
    out_ += fmt::format("\\{}{{{}{}}}", p, category ? "" : "sc:", name);
  }

  std::uint32_t braced_hex() {
    constexpr std::size_t kDigits = 6;
    const std::uint32_t value = hex(kDigits, 0x10FFFF);
    if (!take("}")) refuse("a '\\x{{' without its '}}'");
    return value;
  }

  /// Reads up to `digits` hexadecimal digits.
  std::uint32_t hex(std::size_t digits, std::uint32_t most) {
    std::uint32_t value = 0;
    std::size_t count = 0;
    for (; count < digits && !rest_.empty() && is_hex(rest_.front()); ++count) {
      const char c = rest_.front();
      value = value * 16 + static_cast<std::uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
      rest_.remove_prefix(1);
    }
    if (count == 0) refuse("an escape without hexadecimal digits");
    if (value > most || (value >= 0xD800 && value <= 0xDFFF)) refuse("the escape of 0x{:x} is not supported", value);
    return value;
  }

  void character_class() {
    out_ += '[';
    if (take("^")) out_ += '^';
    if (rest_.starts_with("]")) refuse("a ']' first in [] is not supported");
    while (!take("]")) {
      if (rest_.empty()) refuse("a '[' without its ']'");
      if (rest_.front() == '[') refuse("a '[' inside of [] is not supported");
      if (rest_.starts_with("&&")) refuse("'&&' inside of [] is not supported");
      if (take("\\")) {
        escape();
      } else {
        copy();
      }
    }
    out_ += ']';
  }

  void open_group() {
    out_ += '(';
    bool caseless = caseless_.back();
    if (rest_.starts_with("?")) {
      constexpr std::string_view kKinds[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?-i:"};
      const auto* kind =
          std::find_if(std::begin(kKinds), std::end(kKinds), [this](std::string_view k) { return take(k); });
      if (kind == std::end(kKinds)) refuse("'({}' is not supported", io::printable(rest_.substr(0, 3)));
      if (*kind == "?i:") caseless = true;
      if (*kind == "?-i:") caseless = false;
      out_ += *kind;
    } else if (rest_.starts_with("*")) {
      refuse("'(*' is not supported");
    }
    caseless_.push_back(caseless);
  }

  /// Rewrites {n}, {n,} or {n,m}. Throws if +, ? or * follows, because Ruby and Perl interpret that differently.
  void interval() {
    const std::size_t end = rest_.find('}');
    const std::string_view inside = rest_.substr(0, end);
    const bool counts = end != std::string_view::npos && !inside.empty() && is_digit(inside.front()) &&
                        std::count(inside.begin(), inside.end(), ',') <= 1 &&
                        std::all_of(inside.begin(), inside.end(), [](char c) { return is_digit(c) || c == ','; });
    if (!counts) refuse("a '{{' that begins no repetition {{n}}, {{n,}} or {{n,m}}");
    out_ += fmt::format("{{{}}}", inside);
    rest_.remove_prefix(end + 1);
    if (!rest_.empty() && (rest_.front() == '+' || rest_.front() == '?' || rest_.front() == '*')) {
      refuse("a '{}' after a repetition in braces is not supported", rest_.front());
    }
  }

  std::string_view rest_;
  std::string out_;
  std::vector<bool> caseless_{false};  ///< for each open group, whether it ignores case
};

}  // namespace

std::string pcre_syntax(std::string_view regex) {
  if (regex.size() > kMaxBytes) refuse("longer than {} bytes", kMaxBytes);
  return Rewriter(regex).rewrite();
}

std::string quoted_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (is_punctuation(c)) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace headgate::tokenize
