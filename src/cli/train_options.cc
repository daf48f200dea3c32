// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <vector>

#include "cli/threads.hpp"
#include "cli/train_options.hpp"

namespace headgate::cli {
namespace {

class Declare {
 public:
  explicit Declare(VerbOptions& verb) : verb_(verb) {}

  void group(const char* name) { verb_.group(name); }
  Option word(const char* name, std::string& to, const char* type, const std::string& help) {
    return verb_.value(name, to, type, help);
  }
  Option count(const char* name, Given<std::int64_t>& to, const std::string& help, std::int64_t least = 1) {
    return verb_.value(name, to, "N", help).range(least, kMost);
  }
  Option number(const char* name, Given<double>& to, const std::string& help) {
    return verb_.value(name, to, "X", help);
  }
  Option flag(const char* name, bool& to, const std::string& help) { return verb_.flag(name, to, help); }
  VerbOptions& verb() { return verb_; }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 31;
  VerbOptions& verb_;
};

void declare_run(Declare& d, TrainOptions& o) {
  d.group("Run");
  d.verb().lists("--data", o.run.data, "PATH...",
                 "UTF-8 text: files, or directories with all files below them, but for those that are not UTF-8 and "
                 "for what runs have written. Bytes are tokens; the tail (a twentieth, at most 4 MiB) is held out for "
                 "evaluation");
  declare_include(d.verb(), o.run.include);
  d.word("--out", o.out, "DIR", "The run's directory, made if missing: checkpoint/ and metrics.jsonl").required();
  d.flag("--resume", o.resume,
         "Go on with the run in --out, with its own settings: the same bits as a run that was never interrupted, at "
         "the same number of threads. --steps, --data and --include (of the same content), --eval-*, --save-every and "
         "--threads may be given anew");
  d.word("--task", o.run.task, "TASK",
         "text (default), or bigram-backcopy: sequences from BOS on by the data's bigrams, but after t, e and space "
         "comes a copy of the token before. Each task has its own default sizes");
  d.count("--stop-at", o.run.stop_at, "Stop when N steps are done, as if interrupted there: all is saved");
  d.count("--eval-every", o.run.eval_every, "Evaluate every N steps and at the end (default 250; 0: never)", 0);
  d.count("--eval-tokens", o.run.eval_tokens,
          "Held-out tokens of an evaluation, at most, in whole sequences (default 65536)");
  d.count("--save-every", o.run.save_every, "Save every N steps and at the end (default 500; 0: at the end only)", 0);
  d.count("--log-every", o.run.log_every, "Where there is no terminal: a line every N steps (default 10)");
  declare_threads(d.verb(), o.run.threads, "Threads (default: all cores); on --resume as before");
}

void declare_optimizer(Declare& d, RunOptions& o) {
  d.group("Optimizer (AdamW)");
  d.count("--steps", o.steps, "Steps of the run, and of its schedule (default 1000)");
  d.count("--batch", o.batch, "Sequences of one pass (default: text 16, bigram-backcopy 32)");
  d.count("--accumulate", o.accumulate, "Passes whose gradients make a step (default 1)");
  d.number("--lr", o.lr, "Largest learning rate (default: text 2e-3, bigram-backcopy 1e-2)");
  d.count("--warmup", o.warmup, "Steps of linear warm-up (default: a tenth of --steps, at most 100)", 0);
  d.word("--schedule", o.schedule, "NAME", "After the warm-up: cosine (default), linear or constant");
  d.number("--lr-floor", o.lr_floor, "Learning rate of the last step, as a share of --lr (default 0.1)");
  d.number("--weight-decay", o.weight_decay, "Decoupled; of matrices and embeddings (default 0.1)");
  d.number("--beta2", o.beta2, "Decay of the second moment (default 0.95)");
  d.number("--clip", o.clip, "Largest norm of the gradient (default 1; 0: no limit)");
  d.verb().value("--seed", o.seed, "N", "Of initial parameters and the order of data (default 1)");
}

void declare_sizes(Declare& d, ModelOptions& o) {
  d.group("Model");
  d.word("--config", o.config_file, "FILE.json", "A config.json to start from; other options change it")
      .existing_file();
  d.count("--layers", o.layers, "Layers (default: text 6, bigram-backcopy 1)");
  d.count("--dim", o.dim, "Width of the residual stream (default: text 256, bigram-backcopy 64)");
  d.count("--heads", o.heads, "Query heads (default: text 8, bigram-backcopy 1)");
  d.count("--kv-heads", o.kv_heads, "Key and value heads (default: half of --heads)");
  d.count("--head-dim", o.head_dim, "Features of a head (default: --dim / --heads)");
  d.count("--ffn", o.ffn, "Width of the MLP (default: 3 * --dim)");
  d.count("--seq-len", o.seq_len, "Tokens of a sequence (default: text 256, bigram-backcopy 128)");
  d.count("--vocab", o.vocab, "Rows of the embedding (default: text 256, bigram-backcopy 264)");
  d.word("--norm", o.norm, "KIND", "RMSNorm: plain (default) or zero-centred");
  d.word("--qk-norm", o.qk_norm, "on|off", "RMSNorm of each head's q and k (default on)");
  d.word("--embeddings", o.embeddings, "KIND", "The logits' matrix: tied to the embedding (default) or separate");
  d.number("--rope-base", o.rope_base, "Base of RoPE's angles (default 10000)");
  d.number("--rope-fraction", o.rope_fraction,
           "Share of a head's features that turn (default: text 1, bigram-backcopy 0.25; 0: no RoPE)");
  d.number("--init-std", o.init_std, "Standard deviation of initial matrices (default 0.02)");
}

void declare_gate(Declare& d, ModelOptions& o) {
  d.group("Gate");
  d.word("--gate", o.gate, "GATE",
         "none (default), headwise, elementwise or head-shared; or a whole name, like g2-headwise-silu-add");
  d.word("--gate-site", o.gate_site, "SITE",
         "What it acts on: g1 the attention output (default), g2 values, g3 keys, g4 queries, g5 the output of W_o");
  d.word("--gate-fn", o.gate_fn, "FN", "sigmoid (default), sigmoid2, ns_sigmoid, silu, softplus or identity");
  d.word("--gate-op", o.gate_op, "OP", "mul (default) or add");
  d.word("--gate-source", o.gate_source, "SOURCE",
         "input (default): logits from the layer's input; parameter: learned, the same for every token");
  d.number("--gate-init-std", o.gate_init_std, "Standard deviation of the gate's initial matrix (default 0.02)");
  d.number("--gate-bias", o.gate_bias, "Give the gate a learned bias, which starts at X (default: no bias)");
  d.flag("--match-params", o.match_params, "Shrink --ffn until there are as many parameters as without the gate");
  d.group("Controls, to compare a gate with");
  d.word("--output-control", o.output_control, "KIND", "On the attention output: head-rmsnorm or silu");
  d.word("--sinks", o.sinks, "KIND", "In the softmax denominator: learned or off-by-one");
  d.flag("--sandwich-norm", o.sandwich_norm, "Norm the outputs of attention and MLP too");
}

}  // namespace

Option declare_include(VerbOptions& verb, std::vector<std::string>& patterns) {
  return verb.values("--include", patterns, "GLOB",
                     "Of the files below a directory of --data only those whose name, or path below it, matches GLOB: "
                     "'*.txt', 'docs/*' (* takes / too). May be given again; a file that matches any is taken");
}

void declare_train_options(VerbOptions& verb, TrainOptions& options) {
  Declare declare(verb);
  declare_run(declare, options);
  declare_optimizer(declare, options.run);
  declare_sizes(declare, options.model);
  declare_gate(declare, options.model);
}

}  // namespace headgate::cli
