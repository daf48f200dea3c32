// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "models/tokenize/error.hpp"
#include "models/tokenize/pattern_syntax.hpp"

namespace headgate::tokenize {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>>;
using CompiledCode = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;

// Limits of the steps and memory of one search. The patterns of tokenizers stay far below them: they backtrack at most
// over the characters of one match.
constexpr std::uint64_t kMostSteps = 2'000'000;
constexpr std::uint64_t kMostStepsPerByte = 16;
constexpr std::uint32_t kMostHeap_kib = 32 * 1024;
constexpr std::size_t kFirstJitStack = std::size_t{32} * 1024;
constexpr std::size_t kMostJitStack = std::size_t{4} * 1024 * 1024;

// Limits of a thread's CPU time since it constructed a PatternSearch: a constant, plus a time per searched byte.
// Tokenizers need about a hundredth of these limits. CPU time excludes the time of other processes. The clock is read
// after every kSearchesBetweenLooks searches, and after each search of kWindow bytes or more.
constexpr double kMostTime_s = 10.0;
constexpr double kMostTimePerByte_s = 20e-6;
constexpr int kSearchesBetweenLooks = 256;
constexpr std::size_t kWindow = 4096;  ///< one call of PCRE2 finds only matches that begin in this number of bytes

double processor_time_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return {text.begin(), std::find(text.begin(), text.end(), 0)};
}

/// Returns an upper bound of how many bytes before a match the pattern's lookbehinds read. Assumes the worst case: all
/// lookbehinds are nested and as long as the longest one.
std::size_t reach_back_of(const pcre2_code* code, std::string_view syntax) {
  constexpr std::size_t kMostBytesOfCharacter = 4;
  std::uint32_t characters = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &characters);
  std::size_t lookbehinds = 0;
  for (std::size_t at = syntax.find("(?<"); at != std::string_view::npos; at = syntax.find("(?<", at + 1)) {
    ++lookbehinds;
  }
  return lookbehinds * characters * kMostBytesOfCharacter;
}

}  // namespace

struct Pattern::Code {
  CompiledCode compiled;
  bool jit = false;
  std::size_t reach_back = 0;
};

Pattern::Pattern(std::string_view regex) : regex_(regex) {
  const std::string syntax = pcre_syntax(regex);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t offset = 0;
  auto code = std::make_shared<Code>();
  code->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(syntax.data()), syntax.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
                                     &offset, context.get()));
  if (!code->compiled) throw TokenizerError(message_of(error));
  code->jit = pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  code->reach_back = reach_back_of(code->compiled.get(), syntax);
  code_ = std::move(code);
}

std::size_t Pattern::reach_back() const { return code_->reach_back; }

struct PatternSearch::Memory {
  std::shared_ptr<const Pattern::Code> code;
  MatchContext context;
  MatchData data;
  JitStack stack;
  double begin_s = processor_time_s();
  double searched_bytes = 0.0;
  int searches = 0;

  /// Searches for a match that begins in text[from, from + kWindow]. Returns the result code of PCRE2, where
  /// PCRE2_ERROR_PARTIAL means that later text may change the match.
  int search(std::string_view text, std::size_t from, More more);
  /// Throws TokenizerError if the thread has used more CPU time than the limits allow for the bytes searched so far.
  /// `bytes` is the number of bytes that the last search covered.
  void check_time(std::size_t bytes);
};

int PatternSearch::Memory::search(std::string_view text, std::size_t from, More more) {
  const std::uint64_t steps = kMostSteps + kMostStepsPerByte * (text.size() - from);
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, UINT32_MAX)));
  pcre2_set_offset_limit(context.get(), from + kWindow);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match = code->jit ? pcre2_jit_match : pcre2_match;
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | (more == More::may_follow ? PCRE2_PARTIAL_HARD : 0U);
  return match(code->compiled.get(), subject, text.size(), from, options, data.get(), context.get());
}

void PatternSearch::Memory::check_time(std::size_t bytes) {
  searched_bytes += static_cast<double>(bytes);
  if (++searches % kSearchesBetweenLooks != 0 && bytes < kWindow) return;
  const double most = kMostTime_s + kMostTimePerByte_s * searched_bytes;
  if (processor_time_s() - begin_s > most) refuse("more than {:.0f} s for {:.0f} bytes", most, searched_bytes);
}

PatternSearch::PatternSearch(const Pattern& pattern) : memory_(std::make_unique<Memory>()) {
  Memory& m = *memory_;
  m.code = pattern.code_;
  m.context.reset(pcre2_match_context_create(nullptr));
  m.data.reset(pcre2_match_data_create(1, nullptr));
  if (m.code->jit) m.stack.reset(pcre2_jit_stack_create(kFirstJitStack, kMostJitStack, nullptr));
  if (!m.context || !m.data || (m.code->jit && !m.stack)) throw std::bad_alloc();
  pcre2_set_heap_limit(m.context.get(), kMostHeap_kib);
  if (m.stack) pcre2_jit_stack_assign(m.context.get(), nullptr, m.stack.get());
}

PatternSearch::PatternSearch(PatternSearch&&) noexcept = default;
PatternSearch& PatternSearch::operator=(PatternSearch&&) noexcept = default;
PatternSearch::~PatternSearch() = default;

Found PatternSearch::find(Match& match, std::string_view text, std::size_t from, More more) {
  Memory& m = *memory_;
  int found = m.search(text, from, more);
  while (found == PCRE2_ERROR_NOMATCH && text.size() - from > kWindow) {
    m.check_time(kWindow);
    from += kWindow + 1;
    while (from < text.size() && (static_cast<std::uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
    found = m.search(text, from, more);
  }
  if (found == PCRE2_ERROR_NOMATCH) return Found::none;
  if (found < 0 && found != PCRE2_ERROR_PARTIAL) throw TokenizerError(message_of(found));
  const std::size_t* ends = pcre2_get_ovector_pointer(m.data.get());
  match = {ends[0], ends[1]};
  m.check_time(match.end - from);
  // Later text may also change an empty match at the end of the text.
  const bool undecided = found == PCRE2_ERROR_PARTIAL || (more == More::may_follow && match.begin == text.size());
  return undecided ? Found::undecided : Found::match;
}

}  // namespace headgate::tokenize
