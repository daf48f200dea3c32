// SPDX-License-Identifier: Apache-2.0
#include "tokenize/pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "tokenize/error.hpp"
#include "tokenize/pattern_syntax.hpp"

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

// Of one search. Patterns of tokenizers stay far below: they hardly ever go back.
constexpr std::uint32_t kMostSteps = 2'000'000;
constexpr std::uint32_t kMostHeap_KiB = 32 * 1024;
constexpr std::size_t kFirstJitStack = std::size_t{32} * 1024;
constexpr std::size_t kMostJitStack = std::size_t{4} * 1024 * 1024;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return {text.begin(), std::find(text.begin(), text.end(), 0)};
}

}  // namespace

struct Pattern::Code {
  CompiledCode compiled;
  bool jit = false;
};

Pattern::Pattern(std::string_view regex) {
  const std::string syntax = pcre_syntax(regex);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t offset = 0;
  auto code = std::make_shared<Code>();
  code->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(syntax.data()), syntax.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (!code->compiled) throw TokenizerError(message_of(error));
  code->jit = pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

struct PatternSearch::Memory {
  std::shared_ptr<const Pattern::Code> code;
  MatchContext context;
  MatchData data;
  JitStack stack;
};

PatternSearch::PatternSearch(const Pattern& pattern) : memory_(std::make_unique<Memory>()) {
  Memory& m = *memory_;
  m.code = pattern.code_;
  m.context.reset(pcre2_match_context_create(nullptr));
  m.data.reset(pcre2_match_data_create(1, nullptr));
  if (m.code->jit) m.stack.reset(pcre2_jit_stack_create(kFirstJitStack, kMostJitStack, nullptr));
  if (!m.context || !m.data || (m.code->jit && !m.stack)) throw std::bad_alloc();
  pcre2_set_match_limit(m.context.get(), kMostSteps);
  pcre2_set_depth_limit(m.context.get(), kMostSteps);
  pcre2_set_heap_limit(m.context.get(), kMostHeap_KiB);
  if (m.stack) pcre2_jit_stack_assign(m.context.get(), nullptr, m.stack.get());
}

PatternSearch::PatternSearch(PatternSearch&&) noexcept = default;
PatternSearch& PatternSearch::operator=(PatternSearch&&) noexcept = default;
PatternSearch::~PatternSearch() = default;

bool PatternSearch::find(Match& match, std::string_view text, std::size_t from) {
  const Memory& m = *memory_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = m.code->jit ? pcre2_jit_match(m.code->compiled.get(), subject, text.size(), from,
                                                  PCRE2_NO_UTF_CHECK, m.data.get(), m.context.get())
                                : pcre2_match(m.code->compiled.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                              m.data.get(), m.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) throw TokenizerError(message_of(found));
  const std::size_t* ends = pcre2_get_ovector_pointer(m.data.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace headgate::tokenize
