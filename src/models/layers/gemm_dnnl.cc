// SPDX-License-Identifier: Apache-2.0
// Multiplies matrices with oneDNN, which chooses kernels by the features of the CPU.
#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "library/core/arena.hpp"
#include "models/layers/gemm_parts.hpp"

namespace headgate::layers {
namespace {

/// Makes oneDNN compute the calling thread's products on one thread, and blocks signals, while the object exists.
/// oneDNN's f32 kernels point the stack pointer into a workspace on the heap. A signal handler's stack frames would
/// overwrite the workspace.
class IsolatedCall {
 public:
  IsolatedCall() : threads_before_(omp_get_max_threads()) {
    omp_set_num_threads(1);
    pthread_sigmask(SIG_BLOCK, &asynchronous_signals(), &signals_before_);
  }
  ~IsolatedCall() {
    pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
    omp_set_num_threads(threads_before_);
  }
  IsolatedCall(const IsolatedCall&) = delete;
  IsolatedCall& operator=(const IsolatedCall&) = delete;

 private:
  /// Returns all signals except those that the thread's own instructions raise, such as SIGSEGV.
  static const sigset_t& asynchronous_signals() {
    static const sigset_t signals = [] {
      sigset_t set;
      sigfillset(&set);
      for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&set, signal);
      return set;
    }();
    return signals;
  }

  int threads_before_;
  sigset_t signals_before_{};
};

char letter(Form form) { return form == Form::stored ? 'N' : 'T'; }

const char* isa_name(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41: return "sse41";
    case dnnl_cpu_isa_avx: return "avx";
    case dnnl_cpu_isa_avx2: return "avx2";
    case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core: return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni: return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16: return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx: return "avx512_core_amx";
    default: return "kernels without a name";
  }
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

template <typename T>
constexpr auto kType = std::is_same_v<T, BFloat16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;

template <typename T>
dnnl::memory::desc described(const View<T, 2>& x, Form form) {
  const auto [rows, columns] = x.shape;
  constexpr auto type = kType<std::remove_const_t<T>>;
  if (form == Form::transposed) return {{columns, rows}, type, dnnl::memory::dims{1, x.strides[0]}};
  return {{rows, columns}, type, dnnl::memory::dims{x.strides[0], 1}};
}

/// A compiled oneDNN kernel for one combination of sizes and strides.
struct Kernel {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, out, scratch;
};

template <typename Out>
Kernel make_kernel(const Product<BFloat16, Out>& p) {
  dnnl::primitive_attr attributes;
  // Uses scratch memory of the calling thread. By default, the scratch memory belongs to the thread that creates the
  // kernel.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.update == Update::add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  Kernel out{{}, described(p.a, p.a_form), described(p.b, p.b_form), described(p.out, Form::stored), {}};
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(cpu(), out.a, out.b, out.out, attributes);
#else
  const dnnl::matmul::primitive_desc description({out.a, out.b, out.out}, attributes, cpu());
#endif
  out.primitive = dnnl::matmul(description);
  out.scratch = description.scratchpad_desc();
  return out;
}

/// Returns the kernel for a product from a per-thread cache, because creating a kernel takes 0.2 to 0.6 ms.
template <typename Out>
const Kernel& kernel_for(const Product<BFloat16, Out>& p) {
  constexpr std::size_t kMost = 256;
  using Key = std::array<std::int64_t, 9>;
  thread_local std::map<Key, Kernel> kernels;
  const Key key{p.M(),
                p.N(),
                p.K(),
                p.a.strides[0],
                p.b.strides[0],
                p.out.strides[0],
                static_cast<std::int64_t>(p.a_form),
                static_cast<std::int64_t>(p.b_form),
                static_cast<std::int64_t>(p.update)};
  const auto found = kernels.find(key);
  if (found != kernels.end()) return found->second;
  if (kernels.size() == kMost) kernels.clear();
  return kernels.emplace(key, make_kernel(p)).first->second;
}

template <typename T>
void copy_column(const View<T, 2>& to, const View<const T, 2>& from) {
  for (std::int64_t i = 0; i < from.shape[0]; ++i) to(i, 0) = from(i, 0);
}

/// Works around oneDNN 3.7, which ignores the stride of a matrix with one column. Copies such a column to contiguous
/// memory. Applies to `out` with one column, and to a transposed `a` with one column.
template <typename Out>
class WithoutLooseColumns {
 public:
  explicit WithoutLooseColumns(const Product<BFloat16, Out>& product) : product_(product), out_(product.out) {
    thread_local std::vector<BFloat16> row;
    thread_local std::vector<Out> column;
    const std::int64_t M = product.M(), K = product.K();
    if (M == 1 && product.a_form == Form::transposed) {
      row.resize(static_cast<std::size_t>(K));
      copy_column<BFloat16>({row.data(), {K, 1}}, product.a);
      product_.a = {row.data(), {1, K}};
      product_.a_form = Form::stored;
    }
    if (product.N() == 1) {
      column.resize(static_cast<std::size_t>(M));
      product_.out = {column.data(), {M, 1}};
      if (product.update == Update::add) copy_column<Out>(product_.out, out_);
    }
  }
  const Product<BFloat16, Out>& product() const { return product_; }
  void store() const {
    if (product_.out.data != out_.data) copy_column<Out>(out_, product_.out);
  }

 private:
  Product<BFloat16, Out> product_;
  View<Out, 2> out_;
};

template <typename Out>
bool gemm_bf16(const Product<BFloat16, Out>& loose) {
  const IsolatedCall isolated;
  try {
    const WithoutLooseColumns<Out> moved(loose);
    const Product<BFloat16, Out>& p = moved.product();
    const Kernel& kernel = kernel_for(p);
    thread_local Block scratch;
    if (scratch.bytes() < kernel.scratch.get_size()) scratch = Block{kernel.scratch.get_size()};
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, cpu(), const_cast<void*>(data));
    };
    thread_local dnnl::stream stream(cpu());
    kernel.primitive.execute(stream, {{DNNL_ARG_SRC, memory(kernel.a, p.a.data)},
                                      {DNNL_ARG_WEIGHTS, memory(kernel.b, p.b.data)},
                                      {DNNL_ARG_DST, memory(kernel.out, p.out.data)},
                                      {DNNL_ARG_SCRATCHPAD, memory(kernel.scratch, scratch.data())}});
    moved.store();
    return true;
  } catch (const std::exception&) {  // expected if memory runs out
    return false;
  }
}

}  // namespace

bool gemm(const Product<float>& p) {
  const IsolatedCall isolated;
  const float beta = p.update == Update::add ? 1.0F : 0.0F;
  try {
    return dnnl_sgemm(letter(p.a_form), letter(p.b_form), p.M(), p.N(), p.K(), 1.0F, p.a.data, p.a.strides[0], p.b.data,
                      p.b.strides[0], beta, p.out.data, p.out.strides[0]) == dnnl_success;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool gemm(const Product<BFloat16, float>& p) { return gemm_bf16(p); }
bool gemm(const Product<BFloat16>& p) { return gemm_bf16(p); }

bool has_bf16_gemm() {
  static const bool has = [] {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa == dnnl_cpu_isa_avx512_core_bf16 || isa == dnnl_cpu_isa_avx512_core_amx;
  }();
  return has;
}

GemmMemory gemm_memory() {
  // In the first product, oneDNN 2.6 maps 6 MiB for its f32 kernels and 12 MiB for the kernels that multiply a few
  // rows. In addition, each thread packs up to 9984 × 384 numbers of one operand and 384 × 384 of the other.
  return {std::uint64_t{24} << 20, std::uint64_t{16} << 20};
}

bool prepare_gemm() {
  constexpr std::int64_t kSize = 64;
  std::array<float, kSize * kSize> zeros{}, out{};
  const View<const float, 2> square(zeros.data(), {kSize, kSize});
  return gemm(
      Product<float>{{out.data(), {kSize, kSize}}, square, Form::stored, square, Form::transposed, Update::overwrite});
}

std::string gemm_description() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}, {}", version.major, version.minor, version.patch,
                     isa_name(dnnl_get_effective_cpu_isa()));
}

}  // namespace headgate::layers
