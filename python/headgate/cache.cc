// SPDX-License-Identifier: Apache-2.0
#include "headgate/cache.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"

// headgate/cache.hpp: KvCache.

namespace headgate::python {
namespace {

/// Memory of a cache as Python sees it: arrays of its pages keep it alive, also when the cache has moved on.
nb::capsule take_memory(std::size_t bytes) {
  auto memory = std::make_unique<std::uint64_t[]>((bytes + 7) / 8);
  return {memory.release(), [](void* data) noexcept { delete[] static_cast<std::uint64_t*>(data); }};
}

/// A KvCache whose memory Python holds, for one thread at a time: others wait.
class Cache {
 public:
  explicit Cache(const CacheShape& shape)
      : memory_(take_memory(cache_bytes(shape))), cache_(place_cache(memory_.data(), shape)) {}

  /// What `call` does with the cache, without the interpreter's lock.
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
    with([&](KvCache& cache) { cache.move_to(tensors); });
    memory_ = std::move(memory);
  }

  const nb::capsule& memory() const { return memory_; }

 private:
  mutable std::mutex mutex_;
  nb::capsule memory_;
  mutable KvCache cache_;
};

nb::dict batch_of(const Cache& self, const std::vector<std::int64_t>& sequences, std::int64_t T,
                  const std::string& layout_word) {
  const auto layout = parse_word<Layout>("batch: layout", layout_word);
  const CacheBatch batch = self.with([&](const KvCache& cache) { return cache.batch(sequences, T); });
  const auto n = static_cast<std::int64_t>(sequences.size());
  const auto tensor = [&](const TensorView& view) { return array_over(view, ArrayKind::pages, layout, self.memory()); };
  nb::dict inputs;
  inputs["k"] = tensor(batch.tensors.k);
  inputs["v"] = tensor(batch.tensors.v);
  if (batch.tensors.k_scale.present()) inputs["k_scale"] = tensor(batch.tensors.k_scale);
  if (batch.tensors.v_scale.present()) inputs["v_scale"] = tensor(batch.tensors.v_scale);
  const std::int64_t entries = n == 0 ? 0 : static_cast<std::int64_t>(batch.block_table.size()) / n;
  inputs["block_table"] = array_of(batch.block_table, {n, entries});
  inputs["key_lengths"] = array_of(batch.key_lengths, {n});
  if (T > 0) inputs["query_offsets"] = array_of(batch.query_offsets, {n});
  inputs["layout"] = layout_word;
  return inputs;
}

void append(Cache& self, const std::vector<std::int64_t>& sequences, const nb::object& k, const nb::object& v,
            const std::string& layout_word) {
  const auto layout = parse_word<Layout>("append: layout", layout_word);
  const Input keys = input_of("append", "k", k, ArrayKind::heads, layout);
  const Input values = input_of("append", "v", v, ArrayKind::heads, layout);
  require(keys.view.present() && values.view.present(), "append: {} is required but None",
          keys.view.present() ? "v" : "k");
  self.with([&](KvCache& cache) { cache.append(sequences, keys.view, values.view); });
}

/// A method that takes a sequence, and what else.
template <auto kMethod, typename... Arguments>
auto method() {
  return [](Cache& self, Arguments... arguments) {
    return self.with([&](KvCache& cache) { return (cache.*kMethod)(arguments...); });
  };
}

}  // namespace

void bind_cache(nb::module_& module) {
  nb::class_<Cache>(module, "KvCache",
                    "Keys and values of tokens seen so far, in pages, for decoding.\n\n"
                    "    cache = headgate.KvCache(8, 128, 128, page=64, pages=1024)\n"
                    "    s = cache.add_sequence()\n"
                    "    cache.append([s], k, v)                     # of T new tokens, (1,Hkv,T,D) and (1,Hkv,T,Dv)\n"
                    "    y = headgate.attention(q, gate=z, causality='causal', **cache.batch([s], T))\n\n"
                    "Every method that fails raises ValueError and has changed nothing.")
      .def(
          "__init__",
          [](Cache* self, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim, std::int64_t page,
             std::int64_t pages, const std::string& dtype) {
            new (self)
                Cache(CacheShape{kv_heads, head_dim, value_dim, page, pages, dtype_of_word("KvCache", "dtype", dtype)});
          },
          nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("value_dim"), nb::kw_only(),
          nb::arg("page") = CacheShape{}.page, nb::arg("pages"), nb::arg("dtype") = dtype_name(CacheShape{}.dtype),
          "Hkv, D, Dv; `page` tokens a page, `pages` pages; dtype f32, f64, bf16, f16, or i8 with a scale for each "
          "token\n"
          "and head.")
      .def("add_sequence", method<&KvCache::add_sequence>(), "The number of a new sequence without tokens.")
      .def("fork", method<&KvCache::fork, std::int64_t>(), nb::arg("sequence"),
           "A sequence with the tokens of `sequence`, whose pages they share.")
      .def("remove_sequence", method<&KvCache::remove_sequence, std::int64_t>(), nb::arg("sequence"),
           "Frees the number and the pages of a sequence.")
      .def("append", append, nb::arg("sequences"), nb::arg("k").none(), nb::arg("v").none(), nb::kw_only(),
           nb::arg("layout") = "bhtd",
           nb::sig("def append(self, sequences: Sequence[int], k: Array, v: Array, *, layout: str = 'bhtd') -> None"),
           "T new tokens at the end of each of B different sequences: k (B,Hkv,T,D), v (B,Hkv,T,Dv).")
      .def("truncate", method<&KvCache::truncate, std::int64_t, std::int64_t>(), nb::arg("sequence"), nb::arg("length"),
           "Leaves the first `length` tokens of a sequence.")
      .def("slide", method<&KvCache::slide, std::int64_t, std::int64_t, std::int64_t>(), nb::arg("sequence"),
           nb::arg("sinks"), nb::arg("window"),
           "Drops whole pages that hold neither one of the first `sinks` tokens nor one of the last `window`.")
      .def("length", method<&KvCache::length, std::int64_t>(), nb::arg("sequence"), "Tokens that a sequence holds.")
      .def("position", method<&KvCache::position, std::int64_t>(), nb::arg("sequence"),
           "The position of its next token: tokens that it holds and tokens that slide dropped.")
      .def(
          "pages",
          [](const Cache& self, std::int64_t sequence) {
            return self.with([sequence](const KvCache& cache) {
              const auto pages = cache.pages(sequence);
              return std::vector<std::int32_t>(pages.begin(), pages.end());
            });
          },
          nb::arg("sequence"), "The pages of a sequence, in order.")
      .def_prop_ro("free_pages", method<&KvCache::free_pages>(), "Pages that no sequence has.")
      .def(
          "batch", batch_of, nb::arg("sequences"), nb::arg("T") = 1, nb::kw_only(), nb::arg("layout") = "bhtd",
          nb::sig("def batch(self, sequences: Sequence[int], T: int = 1, *, layout: str = 'bhtd') -> dict[str, Any]"),
          "The arguments of attention for sequences whose T queries are the last T tokens of each: k, v, block_table,\n"
          "key_lengths, query_offsets, layout, and k_scale and v_scale of int8. Arrays of pages are the cache's "
          "memory.\n"
          "For packed queries (cu_seqlens_q) take T = 0, which leaves query_offsets out.")
      .def("grow", &Cache::grow, nb::arg("pages"),
           "More pages, in new memory; arrays of earlier batches keep the old.");
}

}  // namespace headgate::python
