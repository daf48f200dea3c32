// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "models/io/input_file.hpp"
#include "models/jinja/text.hpp"
#include "models/jinja/value.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Converts all line ends to \n. Removes a line end at the end of the text.
std::string with_plain_lines(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (text.substr(i + 1).starts_with('\n')) ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

/// Reads a code point from the first `count` hexadecimal digits. Throws TemplateError if they are not the code point of
/// a character.
char32_t character_of(std::string_view digits, std::size_t count) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + std::min(count, digits.size()), value, 16);
  const bool whole = error == std::errc() && end == digits.data() + count;
  if (!whole || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) raise_error("an escape names no character");
  return value;
}

/// Returns the value of a string literal without quotes. Replaces Python's escape sequences.
std::string unescaped(std::string_view text) {
  constexpr std::string_view kSimple = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
  constexpr std::array<std::pair<char, std::size_t>, 3> kCoded{{{'x', 2}, {'u', 4}, {'U', 8}}};
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char letter = text[++i];  // in bounds: in a string literal, a character follows every backslash
    const auto coded =
        std::find_if(kCoded.begin(), kCoded.end(), [letter](const auto& row) { return row.first == letter; });
    if (const std::size_t at = kSimple.find(letter); at != std::string_view::npos) {
      out += kMeanings[at];
    } else if (coded != kCoded.end()) {
      tokenize::append_utf8(out, character_of(text.substr(i + 1), coded->second));
      i += coded->second;
    } else if (is_digit(letter) || letter == 'N' || static_cast<unsigned char>(letter) >= 0x80) {
      raise_error("the escape '\\{}' is not supported", io::printable(std::string_view(&letter, 1)));
    } else if (letter != '\n') {
      out += '\\';
      out += letter;
    }
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view text, int& line) : all_(with_plain_lines(text)), rest_(all_), line_(line) { line_ = 1; }

  std::vector<Token> run() {
    while (!rest_.empty()) next_tag();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void skip(std::size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(bytes), '\n'));
    rest_.remove_prefix(bytes);
  }
  bool take_end(std::string_view sign, std::string_view close) {
    if (!rest_.starts_with(sign) || !rest_.substr(sign.size()).starts_with(close)) return false;
    skip(sign.size() + close.size());
    return true;
  }

  /// Adds tokens for the text before the next tag, and for the tag.
  void next_tag() {
    std::size_t at = rest_.find('{');
    while (at != std::string_view::npos &&
           (at + 1 == rest_.size() || std::string_view("{%#").find(rest_[at + 1]) == std::string_view::npos)) {
      at = rest_.find('{', at + 1);
    }
    std::string_view before = rest_.substr(0, at);
    if (at == std::string_view::npos) {
      add(TokenKind::text, std::string(before));
      return skip(before.size());
    }
    const char kind = rest_[at + 1], sign = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
    if (sign == '-') {
      before = stripped(before, nullptr, {.left = false, .right = true});
    } else if (kind != '{' && sign != '+') {
      before = without_indent(before);
    }
    if (!before.empty()) add(TokenKind::text, std::string(before));
    skip(at + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return comment();
    add(kind == '{' ? TokenKind::begin_output : TokenKind::begin_statement, "");
    inside(kind == '{' ? "}}" : "%}");
    add(kind == '{' ? TokenKind::end_output : TokenKind::end_statement, "");
  }

  /// Removes the white space between the start of the line and the tag. Keeps it if the line has anything else before
  /// the tag.
  std::string_view without_indent(std::string_view before) const {
    const std::size_t line = before.rfind('\n') + 1;  // start of the line; 0 if `before` has no line end
    if (line == 0 && !at_line_) return before;
    return space_at_front(before.substr(line)) == before.size() - line ? before.substr(0, line) : before;
  }

  void comment() {
    const std::size_t at = rest_.find("#}");
    if (at == std::string_view::npos) raise_error("a comment has no end");
    const char sign = at == 0 ? ' ' : rest_[at - 1];
    skip(at + 2);
    end_tag(sign == '-', sign != '+');
  }

  /// Ends a tag and skips white space after it. Skips all white space if `all` is set. Otherwise skips one line end if
  /// `line` is set.
  void end_tag(bool all, bool line) {
    const std::size_t bytes = all ? space_at_front(rest_) : line && rest_.starts_with('\n') ? 1 : 0;
    at_line_ = bytes > 0 && rest_[bytes - 1] == '\n';
    skip(bytes);
  }

  /// Adds the tokens inside a tag and skips the tag's closing bracket.
  void inside(std::string_view close) {
    const bool statement = close == "%}";
    for (std::string brackets;;) {
      skip(space_at_front(rest_));
      if (rest_.empty()) raise_error("a tag has no end");
      if (brackets.empty()) {
        if (take_end("-", close)) return end_tag(true, false);
        if (statement && take_end("+", close)) return end_tag(false, false);
        if (take_end("", close)) return end_tag(false, statement);
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const char c = rest_.front();
    if (begins_name(c)) return take_while(TokenKind::name, [](char d) { return begins_name(d) || is_digit(d); });
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    constexpr std::array<std::string_view, 26> kSymbols{"//", "**", "==", "!=", ">=", "<=", "+", "-", "*",
                                                        "/",  "%",  "~",  "(",  ")",  "[",  "]", "{", "}",
                                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto symbol =
        std::find_if(kSymbols.begin(), kSymbols.end(), [this](auto each) { return rest_.starts_with(each); });
    if (symbol == kSymbols.end()) {
      raise_error("'{}' is no part of an expression", io::printable(rest_.substr(0, first_bytes(rest_))));
    }
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (kOpen.find(c) != std::string_view::npos) brackets += kClose[kOpen.find(c)];
    if (kClose.find(c) != std::string_view::npos) {
      if (!brackets.ends_with(c)) raise_error("'{}' closes nothing", c);
      brackets.pop_back();
    }
    add(TokenKind::symbol, std::string(*symbol));
    skip(symbol->size());
  }

  template <class Test>
  void take_while(TokenKind kind, const Test& test) {
    const auto bytes = static_cast<std::size_t>(std::find_if_not(rest_.begin(), rest_.end(), test) - rest_.begin());
    add(kind, std::string(rest_, 0, bytes));
    skip(bytes);
  }

  void number() {
    const auto digits = [this](std::size_t at) {
      while (at < rest_.size() && is_digit(rest_[at])) ++at;
      return at;
    };
    std::size_t end = digits(0);
    bool real = false;
    if (rest_.substr(end).starts_with('.') && digits(end + 1) > end + 1) {
      end = digits(end + 1);
      real = true;
    }
    if (end < rest_.size() && (begins_name(rest_[end]) || (rest_.front() == '0' && end > 1 && !real))) {
      raise_error("the number '{}' is not supported", io::printable(rest_.substr(0, end + 1)));
    }
    add(real ? TokenKind::real : TokenKind::integer, std::string(rest_.substr(0, end)));
    skip(end);
  }

  void string(char quote) {
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? std::size_t{2} : std::size_t{1};
    if (end >= rest_.size()) raise_error("a string has no end");
    add(TokenKind::string, unescaped(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  std::string all_;
  std::string_view rest_;
  int& line_;
  bool at_line_ = true;  ///< whether the text after the last tag begins a new line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text, int& line) { return Lexer(text, line).run(); }

}  // namespace headgate::jinja
