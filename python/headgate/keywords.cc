// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/keywords.hpp"

#include <algorithm>
#include <exception>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "library/core/nearest_word.hpp"

namespace headgate::python {
namespace {

[[noreturn]] void fail(const CallSpec& spec, const std::string& what) {
  throw nb::type_error(formatted("{}: {}", spec.function, what).c_str());
}

/// Formats `object` for an error message as its repr. If that is long, returns the class name instead.
std::string shown(nb::handle object) {
  constexpr std::size_t kMost = 60;
  std::string text = nb::cast<std::string>(nb::repr(object));
  if (text.size() <= kMost && text.find('\n') == std::string::npos) return text;
  return "a " + nb::cast<std::string>(object.type().attr("__name__"));
}

std::string in_one_line(std::string_view message) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7F ? formatted("\\x{:02x}", byte) : std::string(1, c);
  }
  return line;
}

std::string_view text_of(nb::handle name) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<std::size_t>(size)};
}

/// A suggestion for an unknown argument name. `other` is that name, used by another library or an older release.
/// `argument` is Headgate's name for it. `given` is the text of the suggestion.
struct OtherName {
  std::string_view other, argument, given;
};
constexpr OtherName kOtherNames[] = {
    {"is_causal", "causality", "causality='causal'"},
    {"causal", "causality", "causality='causal'"},
    {"dropout_p", "dropout", "dropout"},
    {"attn_mask", "mask", "mask, or bias for numbers"},
    {"attn_bias", "bias", "bias"},
    {"key_padding_mask", "key_lengths", "key_lengths, or mask"},
    {"seqused_k", "key_lengths", "key_lengths"},
    {"cu_seq_q", "cu_seqlens_q", "cu_seqlens_q"},
    {"cu_seq_k", "cu_seqlens_k", "cu_seqlens_k"},
    {"softmax_scale", "scale", "scale"},
    {"sm_scale", "scale", "scale"},
    {"window_size", "window_left", "window_left and window_right"},
    {"s_aux", "sinks", "sinks"},
    {"query", "q", "q"},
    {"key", "k", "k"},
    {"value", "v", "v"},
    {"gate_logits", "gate", "gate"},
    {"z", "gate", "gate"},
    // Suggestions in drop-in replacements of PyTorch functions.
    {"is_causal", "window_size", "window_size=(-1, 0)"},
    {"causality", "window_size", "window_size=(-1, 0)"},
    {"causality", "is_causal", "is_causal=True"},
    {"dropout", "dropout_p", "dropout_p"},
    {"mask", "attn_mask", "attn_mask"},
    {"bias", "attn_mask", "attn_mask"},
    // Suggestions in constructors of layers.
    {"embed_dim", "hidden_size", "hidden_size"},
    {"num_heads", "num_attention_heads", "num_attention_heads"},
    {"num_kv_heads", "num_key_value_heads", "num_key_value_heads"},
};

}  // namespace

std::string meant_instead_of(std::string_view name, const std::vector<std::string_view>& known) {
  for (const OtherName& row : kOtherNames) {
    const bool taken = row.other == name && std::find(known.begin(), known.end(), row.argument) != known.end();
    if (taken) return formatted("; did you mean {}?", row.given);
  }
  return did_you_mean(name, known);
}

std::string literal_of(std::string_view words) {
  std::string text = "Literal['";
  for (const char c : words) {
    if (c == ',') {
      text += "',";
    } else if (c == ' ') {
      text += " '";
    } else {
      text += c;
    }
  }
  return text + "']";
}

Keywords::Keywords(const CallSpec& spec, const nb::args& positional, const nb::kwargs& given)
    : spec_(spec), positional_(positional), given_(given) {
  const std::vector<ArgumentText>& arguments = spec.arguments;
  if (positional.size() > spec.positional) {
    fail(spec, formatted("takes {} argument{} by position but got {}", spec.positional, spec.positional == 1 ? "" : "s",
                         positional.size()));
  }
  found_.reserve(positional.size() + given.size());
  for (std::size_t i = 0; i < positional.size(); ++i) found_.push_back({arguments[i].name, positional[i]});
  for (const auto& [key, value] : given) {
    const std::string_view name = text_of(key);
    const auto known = std::find_if(arguments.begin(), arguments.end(),
                                    [name](const ArgumentText& argument) { return argument.name == name; });
    if (known == arguments.end()) {
      std::vector<std::string_view> names;
      names.reserve(arguments.size());
      for (const ArgumentText& argument : arguments) names.emplace_back(argument.name);
      fail(spec, formatted("there is no argument '{}'{}", name, meant_instead_of(name, names)));
    }
    if (known - arguments.begin() < static_cast<std::ptrdiff_t>(positional.size())) {
      fail(spec, formatted("{} is given by position and by name", name));
    }
    found_.push_back({known->name, value});
  }
  for (std::size_t i = positional.size(); i < arguments.size(); ++i) {
    const ArgumentText& argument = arguments[i];
    if (argument.default_text.empty() && find(argument.name) == nullptr) {
      fail(spec, formatted("{} is missing", argument.name));
    }
  }
}

const Keywords::Argument* Keywords::find(std::string_view name) const {
  const auto found =
      std::find_if(found_.begin(), found_.end(), [name](const Argument& argument) { return argument.name == name; });
  return found == found_.end() ? nullptr : &*found;
}

nb::object Keywords::take(const char* name) const {
  const Argument* const found = find(name);
  return found == nullptr ? nb::none() : nb::borrow(found->value);
}

bool is_bool(nb::handle object) {
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  return PyBool_Check(object.ptr()) || type == "numpy.bool_" || type == "numpy.bool";
}

void raise_errors_in_one_line() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(PyExc_ValueError, in_one_line(error.what()).c_str());
    }
  });
}

void Keywords::refuse(const char* name, nb::handle object, const char* what) const {
  fail(spec_, formatted("{} is {} but must be {}", name, shown(object), what));
}

int take_threads(const Keywords& keywords) {
  constexpr const char* kThreads = "threads";
  if (keywords.take(kThreads).is_none()) return 0;
  const auto threads = keywords.require<std::int64_t>(kThreads);
  require(threads >= 1 && threads <= max_threads(),
          "{}: threads is {} but must be 1 to {}, four for each processor, or None for default_threads()",
          keywords.function(), threads, max_threads());
  return static_cast<int>(threads);
}

ArgumentText threads_text() {
  return {
      "threads", "int | None", "None",
      "1 to max_threads(); at most default_threads() where it is None. The result has the same bits for every number"};
}

std::string signature_of(const CallSpec& spec, const char* result, const char* self) {
  std::string text = formatted("def {}({}", spec.function, self);
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    const ArgumentText& argument = spec.arguments[i];
    if (i > 0 || *self != '\0') text += ", ";
    if (i == spec.positional) text += "*, ";
    text += formatted("{}: {}", argument.name, argument.type);
    if (!argument.default_text.empty()) text += " = " + argument.default_text;
  }
  return text + formatted(") -> {}", result);
}

std::string arguments_help(const std::vector<ArgumentText>& arguments) {
  std::string text;
  for (const ArgumentText& argument : arguments) {
    if (!argument.help.empty()) text += formatted("    {}: {}\n", argument.name, argument.help);
  }
  return text;
}

std::vector<ArgumentText> joined(std::vector<ArgumentText> texts, const std::vector<ArgumentText>& more) {
  texts.insert(texts.end(), more.begin(), more.end());
  return texts;
}

std::string docstring_of(const char* text, const std::vector<ArgumentText>& arguments) {
  const std::string help = arguments_help(arguments);
  return help.empty() ? text : formatted("{}\n\nArguments:\n{}", text, help);
}

}  // namespace headgate::python
