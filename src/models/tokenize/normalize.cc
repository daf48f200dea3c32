// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/normalize.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <optional>

#include "models/tokenize/characters.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

/// Code points below this one are in NFC and never compose with a preceding one.
constexpr char32_t kFirstThatChanges = 0x300;

/// Returns whether a character may compose with the preceding one. Such characters are marks, and vowels and final
/// consonants of Hangul.
bool may_join(char32_t c) {
  if (c < kFirstThatChanges) return false;
  if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF)) return true;
  return is_mark(c);
}

/// Returns whether NFC may change a character even without its neighbours, such as U+212B (ångström sign). May also
/// return true for a character that NFC keeps.
bool may_change(char32_t c) {
  return c >= kFirstThatChanges &&
         utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex != UINT16_MAX;
}

std::string form_c_of(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) throw std::bad_alloc();  // a lack of memory: the only possible error for valid UTF-8
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(out, &std::free);
  return {reinterpret_cast<const char*>(out), static_cast<std::size_t>(size)};
}

/// Returns the offset of the last character that cannot compose with the preceding one, or 0. The texts before and
/// after this offset can be normalized separately.
std::size_t last_composition_boundary(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0) {
    --at;
    const CodePoint c = first_code_point(text.substr(at));
    if (c.bytes > 0 && !may_join(c.value)) return at;
  }
  return 0;
}

/// Returns whether both characters are ASCII, but not CR and LF. A grapheme cluster then certainly ends between them.
bool are_apart(char32_t last, char32_t next) {
  constexpr char32_t kAscii = 0x80;
  return last < kAscii && next < kAscii && !(last == U'\r' && next == U'\n');
}

/// Returns the end of the grapheme cluster that begins at `at`.
std::size_t cluster_end(std::string_view text, std::size_t at) {
  CodePoint last = first_code_point(text.substr(at));
  std::size_t end = at + last.bytes;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const CodePoint next = first_code_point(text.substr(end));
    if (are_apart(last.value, next.value)) break;
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state) != 0) {
      break;
    }
    end += next.bytes;
    last = next;
  }
  return end;
}

/// Returns the offset of the last grapheme cluster of `text`, which later text may extend. `text` must begin with a
/// whole cluster.
std::size_t last_cluster(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<char32_t>(static_cast<unsigned char>(text[at])); };
  std::size_t begin = text.empty() ? 0 : text.size() - 1;
  while (begin > 0 && !are_apart(byte(begin - 1), byte(begin))) --begin;
  for (std::size_t at = begin; at < text.size(); at = cluster_end(text, at)) begin = at;
  return begin;
}

std::string with_spaces_replaced(std::string_view text, const std::string& by) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out += by;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void Normalized::change(std::size_t& same, std::size_t begin, std::size_t end, std::string_view by) {
  text_ += source_.substr(same, begin - same);
  changes_.push_back({text_.size(), by.size(), begin, end - begin});
  text_ += by;
  same = end;
}

std::size_t Normalized::take_composed(std::size_t& same, std::size_t at, const std::string& space) {
  const CodePoint first = first_code_point(source_.substr(at));
  std::size_t end = at + first.bytes;
  if (first.value == U' ' && !space.empty()) {  // a space never composes with a neighbour
    change(same, at, end, space);
    return end;
  }
  bool may_differ = may_change(first.value) || may_join(first.value);
  for (CodePoint next; end < source_.size(); end += next.bytes) {
    next = first_code_point(source_.substr(end));
    if (!may_join(next.value)) break;
    may_differ = true;
  }
  if (may_differ) {
    const std::string_view part = source_.substr(at, end - at);
    if (const std::string form = form_c_of(part); form != part) change(same, at, end, form);
  }
  return end;
}

void Normalized::map(std::size_t& same, std::size_t begin, std::size_t end, const NormalForm& form) {
  const std::string_view part = source_.substr(begin, end - begin);
  const std::optional<std::string_view> found = form.charsmap->find(part);
  if (!found && (form.space.empty() || part != " ")) return;
  std::string by(found.value_or(part));
  if (!form.space.empty()) by = with_spaces_replaced(by, form.space);
  if (by != part) change(same, begin, end, by);
}

std::size_t Normalized::take_mapped(std::size_t& same, std::size_t at, const NormalForm& form) {
  constexpr std::size_t kMostBytes = 5;
  const std::size_t end = cluster_end(source_, at);
  const std::size_t first = first_code_point(source_.substr(at)).bytes;
  const bool one = at + first == end;
  if (!one && end - at <= kMostBytes && form.charsmap->find(source_.substr(at, end - at))) {
    map(same, at, end, form);
    return end;
  }
  for (std::size_t bytes = 0; at < end; at += bytes) {
    bytes = first_code_point(source_.substr(at)).bytes;
    map(same, at, at + bytes, form);
  }
  return end;
}

Normalized::Normalized(std::string_view source, const NormalForm& form, bool begins) : source_(source) {
  std::size_t same = 0;  // source bytes from this offset on are not copied to text_ yet
  if (begins && !form.prefix.empty() && !source.empty()) change(same, 0, 0, form.prefix);
  if (form.charsmap != nullptr) {
    for (std::size_t at = 0; at < source.size();) at = take_mapped(same, at, form);
  } else if (form.form_c) {
    for (std::size_t at = 0; at < source.size();) at = take_composed(same, at, form.space);
  } else if (!form.space.empty()) {
    for (std::size_t at = source.find(' '); at != std::string_view::npos; at = source.find(' ', at + 1)) {
      change(same, at, at + 1, form.space);
    }
  }
  if (!changes_.empty()) text_ += source.substr(same);
}

template <class Changes>
Span Normalized::source_of(const Changes& changes, Span part) {
  if (changes.empty()) return part;
  // Maps a position in the normal form to the source. Looks up the last change that begins before the position. A
  // change that begins at the position counts only for the begin of a part.
  // - Inside the change, a begin maps to the start of the replaced source bytes, and an end maps to their end.
  // - After the change, the position has the same distance from the end of the change in both texts.
  const auto place = [&changes](std::size_t at, bool is_end) {
    auto after = std::partition_point(changes.begin(), changes.end(),
                                      [&](const Change& c) { return is_end ? c.begin < at : c.begin <= at; });
    if (after == changes.begin()) return at;
    const Change& c = *std::prev(after);
    if (is_end ? at <= c.begin + c.size : at < c.begin + c.size) return c.source_begin + (is_end ? c.source_size : 0);
    return at - (c.begin + c.size) + c.source_begin + c.source_size;
  };
  return {place(part.begin, false), place(part.end, true)};
}

Span Normalized::source_of(Span part) const { return source_of(changes_, part); }

void NormalizedParts::begin(AppliedSteps steps) {
  normalized_ = steps != AppliedSteps::nothing && !form_.changes_nothing();
  begins_ = steps == AppliedSteps::all;
  pending_.reset();
  size_ = 0;
  changes_.clear();
}

std::string_view NormalizedParts::next(std::string_view part, More more) {
  if (!normalized_) return part;
  if (!pending_.add(part, more)) return {};
  const std::string_view source = pending_.view();
  std::size_t decided = source.size();
  if (more == More::may_follow && form_.charsmap != nullptr) {
    decided = last_cluster(source);
  } else if (more == More::may_follow && form_.form_c) {
    decided = last_composition_boundary(source);
  }
  last_ = Normalized(source.substr(0, decided), form_, begins_);
  begins_ = begins_ && decided == 0;
  for (Normalized::Change change : last_.changes_) {
    change.begin += size_;
    change.source_begin += pending_.begin();
    changes_.push_back(change);
  }
  size_ += last_.text().size();
  pending_.drop_before(decided, decided);
  return last_.text();
}

Span NormalizedParts::source_of(Span part) const { return Normalized::source_of(changes_, part); }

void NormalizedParts::forget(std::size_t at) {
  // source_of() needs the last change that begins before `at`, so this change stays.
  while (changes_.size() > 1 && changes_[1].begin < at) changes_.pop_front();
}

}  // namespace headgate::tokenize
