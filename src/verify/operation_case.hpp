// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "verify/layout.hpp"
#include "verify/slab.hpp"

namespace headgate::verify {

/// Holds what the test problems of every operation have: the spec, the operation's arguments, and the memory of the
/// tensors, filled with poison bytes 0xFF. Spec derives from Options. Views point into the object, so it cannot be
/// copied or moved.
template <class Spec, class Inputs, class Options, class Gradients>
class OperationCase {
 public:
  OperationCase(const OperationCase&) = delete;
  OperationCase& operator=(const OperationCase&) = delete;

  const Spec& spec() const { return spec_; }
  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }
  Options& options() { return options_; }
  const Gradients& gradients() const { return gradients_; }

  void poison_outputs() { output_slabs_.poison(); }
  void poison_gradients() { gradient_slabs_.poison(); }
  /// Returns the name of the first output or gradient with a byte written outside its view.
  std::optional<std::string> spilled() const {
    const std::optional<std::string> name = output_slabs_.spilled();
    return name ? name : gradient_slabs_.spilled();
  }
  /// Return all bytes, including the guard zones: of the outputs, of the gradients, and of both.
  std::vector<std::uint8_t> output_bytes() const { return output_slabs_.bytes(); }
  std::vector<std::uint8_t> gradient_bytes() const { return gradient_slabs_.bytes(); }
  std::vector<std::uint8_t> written_bytes() const {
    std::vector<std::uint8_t> bytes = output_bytes();
    const std::vector<std::uint8_t> gradients = gradient_bytes();
    bytes.insert(bytes.end(), gradients.begin(), gradients.end());
    return bytes;
  }

 protected:
  OperationCase(const Spec& spec, Placement placement)
      : spec_(spec), placement_(placement), options_(static_cast<const Options&>(spec)) {
    options_.context.threads = spec.threads;
  }
  ~OperationCase() = default;

  TensorView place(Slabs& group, const std::string& name, DType dtype, const Shape& shape, std::uint32_t repeats = 0) {
    return group.add(name, placement_).place(dtype, shape, strides_of(spec_.layout, shape, repeats));
  }
  /// Allocates the gradient of an input. Returns an absent view if the input is absent.
  TensorView place_gradient(const std::string& name, const ConstTensorView& input) {
    return input.present() ? place(gradient_slabs_, name, input.dtype, input.shape) : TensorView{};
  }
  /// Omits the gradients that spec().absent_gradients selects. The lowest bit of that mask stands for the first
  /// gradient.
  void omit_absent(std::initializer_list<TensorView*> gradients) {
    unsigned bit = 1;
    for (TensorView* gradient : gradients) {
      if ((spec_.absent_gradients & bit) != 0) *gradient = {};
      bit <<= 1;
    }
  }

  Spec spec_;
  Placement placement_;
  Options options_;
  Slabs input_slabs_, output_slabs_, gradient_slabs_;
  Inputs inputs_;
  Gradients gradients_;
};

}  // namespace headgate::verify
