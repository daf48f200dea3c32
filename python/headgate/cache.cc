// SPDX-License-Identifier: Apache-2.0
#include "headgate/cache.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"

// Binds headgate/cache.hpp: KvCache.

namespace headgate::python {
namespace {

/// Allocates memory for a cache and returns a capsule that owns it. Python arrays of pages keep a reference to the
/// capsule. They stay valid after the cache has moved to larger memory.
nb::capsule take_memory(std::size_t bytes) {
  auto memory = std::make_unique<std::uint64_t[]>((bytes + 7) / 8);
  return {memory.release(), [](void* data) noexcept { delete[] static_cast<std::uint64_t*>(data); }};
}

/// Wraps a KvCache with memory that Python owns. A mutex serializes the calls of different threads.
class Cache {
 public:
  explicit Cache(const CacheShape& shape)
      : memory_(take_memory(cache_bytes(shape))),
        cache_(place_cache(memory_.data(), shape), shape.whole_first, shape.whole_dtype) {}

  /// Returns call(cache). The mutex is held during the call, the interpreter's lock is not.
  template <class Call>
  auto with(const Call& call) const {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    return call(cache_);
  }

  void grow(std::int64_t pages) {
    CacheShape shape = with([](const KvCache& cache) { return cache.shape(); });
    require(pages >= shape.pages, "grow: pages is {} but the cache has {}", pages, shape.pages);
    shape.pages = pages;
    nb::capsule memory = take_memory(cache_bytes(shape));
    const CacheTensors tensors = place_cache(memory.data(), shape);
    with([&](KvCache& cache) {
      cache.move_to(tensors);
      const nb::gil_scoped_acquire locked;
      std::swap(memory_, memory);
    });
  }

  /// Returns a batch and the owner of the memory that its tensors point to. Reads both under the mutex, because a
  /// grow() in another thread could free the memory in between.
  std::pair<CacheBatch, nb::capsule> batch(const std::vector<std::int64_t>& sequences, std::int64_t T) const {
    nb::capsule owner;
    CacheBatch batch = with([&](const KvCache& cache) {
      CacheBatch made = cache.batch(sequences, T);
      const nb::gil_scoped_acquire locked;
      owner = memory_;
      return made;
    });
    return {std::move(batch), std::move(owner)};
  }

 private:
  mutable std::mutex mutex_;
  nb::capsule memory_;
  mutable KvCache cache_;
};

/// Copies `rows` (B,Hkv,F,X), the k_first or v_first of a batch, to a new array.
nb::object array_of_first_rows(const ConstTensorView& rows, Layout layout) {
  const std::size_t bytes = static_cast<std::size_t>(rows.numel()) * dtype_bytes(rows.dtype);
  const nb::capsule memory = take_memory(bytes);
  std::memcpy(memory.data(), rows.data, bytes);
  return array_over({memory.data(), rows.dtype, rows.shape, rows.strides}, ArrayKind::heads, layout, memory);
}

nb::dict batch_of(const Cache& self, const Keywords& keywords) {
  const auto sequences = keywords.require<std::vector<std::int64_t>>("sequences");
  const auto T = keywords.take<std::int64_t>("T", 1);
  const Layout layout = take_layout(keywords);
  const auto [batch, memory] = self.batch(sequences, T);
  const auto n = static_cast<std::int64_t>(sequences.size());
  const auto tensor = [&, &owner = memory](const TensorView& view) {
    return array_over(view, ArrayKind::pages, layout, owner);
  };
  nb::dict inputs;
  inputs["k"] = tensor(batch.tensors.k);
  inputs["v"] = tensor(batch.tensors.v);
  if (batch.tensors.k_scale.present()) inputs["k_scale"] = tensor(batch.tensors.k_scale);
  if (batch.tensors.v_scale.present()) inputs["v_scale"] = tensor(batch.tensors.v_scale);
  AttentionInputs views;
  batch.set(views);
  if (views.k_first.present()) {
    inputs["k_first"] = array_of_first_rows(views.k_first, layout);
    inputs["v_first"] = array_of_first_rows(views.v_first, layout);
  }
  const std::int64_t entries = n == 0 ? 0 : static_cast<std::int64_t>(batch.block_table.size()) / n;
  inputs["block_table"] = array_of(batch.block_table, {n, entries});
  inputs["key_lengths"] = array_of(batch.key_lengths, {n});
  if (T > 0) inputs["query_offsets"] = array_of(batch.query_offsets, {n});
  inputs["layout"] = std::string(word_of(layout));
  return inputs;
}

void append(Cache& self, const Keywords& keywords) {
  const auto sequences = keywords.require<std::vector<std::int64_t>>("sequences");
  const Layout layout = take_layout(keywords);
  const Input keys = input_of("append", "k", keywords.take("k"), ArrayKind::heads, layout);
  const Input values = input_of("append", "v", keywords.take("v"), ArrayKind::heads, layout);
  require(keys.view.present() && values.view.present(), "append: {} is required but None",
          keys.view.present() ? "v" : "k");
  self.with([&](KvCache& cache) { cache.append(sequences, keys.view, values.view); });
}

/// Returns a Python binding of KvCache's method kMethod. All arguments of the method are integers. `names` holds their
/// names in Python.
template <auto kMethod, class... Names>
auto method(const Names*... names) {
  return [=](Cache& self, const Keywords& keywords) {
    const std::array<std::int64_t, sizeof...(Names)> numbers{keywords.require<std::int64_t>(names)...};
    return self.with([&](KvCache& cache) {
      return std::apply([&cache](auto... each) { return (cache.*kMethod)(each...); }, numbers);
    });
  };
}

std::vector<std::int32_t> pages_of(Cache& self, const Keywords& keywords) {
  const auto sequence = keywords.require<std::int64_t>("sequence");
  return self.with([sequence](const KvCache& cache) {
    const auto pages = cache.pages(sequence);
    return std::vector<std::int32_t>(pages.begin(), pages.end());
  });
}

void make_cache(Cache* self, const Keywords& keywords) {
  const auto number = [&](const char* name) { return keywords.require<std::int64_t>(name); };
  const auto dtype = [&](const char* name, DType usual) {
    return dtype_of_word(keywords.function(), name, keywords.take(name, std::string(dtype_name(usual))));
  };
  new (self) Cache(CacheShape{.kv_heads = number("kv_heads"),
                              .head_dim = number("head_dim"),
                              .value_dim = number("value_dim"),
                              .page = keywords.take("page", CacheShape{}.page),
                              .pages = number("pages"),
                              .dtype = dtype("dtype", CacheShape{}.dtype),
                              .whole_first = keywords.take("whole_first", CacheShape{}.whole_first),
                              .whole_dtype = dtype("whole_dtype", CacheShape{}.whole_dtype)});
}

}  // namespace

void bind_cache(nb::module_& module) {
  nb::class_<Cache> bound(module, "KvCache",
                          "Keys and values of tokens seen so far, in pages, for decoding.\n\n"
                          "    cache = headgate.KvCache(8, 128, 128, page=64, pages=1024)\n"
                          "    s = cache.add_sequence()\n"
                          "    cache.append([s], k, v)                     # of T new tokens, (1,Hkv,T,D) and "
                          "(1,Hkv,T,Dv)\n"
                          "    y = headgate.attention(q, gate=z, causality='causal', **cache.batch([s], T))\n\n"
                          "Every method that fails raises ValueError, or TypeError, and has changed nothing.");
  const auto whole = [](const char* name) { return ArgumentText{name, "int", "", ""}; };
  const ArgumentText sequences{"sequences", "Sequence[int]", "", ""},
      layout{"layout", layout_text().type, "'bhtd'", ""};
  const auto add = [&bound](const char* name, auto function, std::vector<ArgumentText> arguments,
                            std::size_t positional, const char* result, const char* text) {
    define_method<Cache&>(bound, name, name, function, std::move(arguments), positional, result, text);
  };
  define_method<Cache*>(
      bound, "__init__", "KvCache", make_cache,
      {whole("kv_heads"),
       whole("head_dim"),
       whole("value_dim"),
       whole("pages"),
       {"page", "int", std::to_string(CacheShape{}.page), ""},
       {"dtype", "str", formatted("'{}'", dtype_name(CacheShape{}.dtype)), ""},
       {"whole_first", "int", std::to_string(CacheShape{}.whole_first), ""},
       {"whole_dtype", "str", formatted("'{}'", dtype_name(CacheShape{}.whole_dtype)), ""}},
      3, "None",
      "Hkv, D, Dv; `page` tokens a page, `pages` pages; dtype f32, f64, bf16, f16, or i8 with a scale "
      "for each token\n"
      "and head. With i8, the first `whole_first` tokens of each sequence are also kept in `whole_dtype`, and "
      "attention\n"
      "reads them there.");
  add("add_sequence", method<&KvCache::add_sequence>(), {}, 0, "int", "The number of a new sequence without tokens.");
  add("fork", method<&KvCache::fork>("sequence"), {whole("sequence")}, 1, "int",
      "A sequence with the tokens of `sequence`, whose pages they share.");
  add("remove_sequence", method<&KvCache::remove_sequence>("sequence"), {whole("sequence")}, 1, "None",
      "Frees the number and the pages of a sequence.");
  add("append", append, {sequences, {"k", "Array", "", ""}, {"v", "Array", "", ""}, layout}, 3, "None",
      "T new tokens at the end of each of B different sequences: k (B,Hkv,T,D), v (B,Hkv,T,Dv).");
  add("truncate", method<&KvCache::truncate>("sequence", "length"), {whole("sequence"), whole("length")}, 2, "None",
      "Leaves the first `length` tokens of a sequence.");
  add("slide", method<&KvCache::slide>("sequence", "sinks", "window"),
      {whole("sequence"), whole("sinks"), whole("window")}, 3, "None",
      "Drops whole pages that hold neither one of the first `sinks` tokens nor one of the last `window`.");
  add("length", method<&KvCache::length>("sequence"), {whole("sequence")}, 1, "int", "Tokens that a sequence holds.");
  add("position", method<&KvCache::position>("sequence"), {whole("sequence")}, 1, "int",
      "The position of its next token: tokens that it holds and tokens that slide dropped.");
  add("pages", pages_of, {whole("sequence")}, 1, "list[int]", "The pages of a sequence, in order.");
  bound.def_prop_ro(
      "free_pages",
      [](const Cache& self) { return self.with([](const KvCache& cache) { return cache.free_pages(); }); },
      "Pages that no sequence has.");
  add("batch", batch_of, {sequences, {"T", "int", "1", ""}, layout}, 2, "dict[str, Any]",
      "The arguments of attention for sequences whose T queries are the last T tokens of each: k, v, block_table,\n"
      "key_lengths, query_offsets, layout, k_scale and v_scale of int8, and k_first and v_first of whole_first. Arrays "
      "of\n"
      "pages are the cache's memory.\n"
      "For packed queries (cu_seqlens_q) take T = 0, which leaves query_offsets out.");
  add(
      "grow", [](Cache& self, const Keywords& keywords) { self.grow(keywords.require<std::int64_t>("pages")); },
      {whole("pages")}, 1, "None", "More pages, in new memory; arrays of earlier batches keep the old.");
}

}  // namespace headgate::python
