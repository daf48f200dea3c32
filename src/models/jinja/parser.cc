// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "models/io/input_file.hpp"
#include "models/jinja/lexer.hpp"
#include "models/jinja/syntax.hpp"

namespace headgate::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {}

  Node whole() {
    Node out = block({});
    if (now().kind != TokenKind::end) raise_error("'{}' ends nothing", io::printable(tokens_[at_ + 1].text));
    return out;
  }

 private:
  /// Increments a nesting depth while the object exists. Throws TemplateError if it exceeds Node::kMostNested.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) {
      if (++depth_ > Node::kMostNested) {
        raise_error("expressions or statements nest more than {} deep", Node::kMostNested);
      }
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  template <class... Children>
  Node make(NodeKind kind, std::string name, Children&&... children) const {
    Node out{.kind = kind, .line = line_, .name = std::move(name)};
    (add(out, std::forward<Children>(children)), ...);
    return out;
  }
  static void add(Node& parent, Node child) {
    if (child.depth >= Node::kMostNested) raise_error("expressions nest more than {} deep", Node::kMostNested);
    parent.depth = std::max(parent.depth, child.depth + 1);
    parent.children.push_back(std::move(child));
  }
  Node constant(Value value) const {
    Node out = make(NodeKind::constant, "");
    out.value = std::move(value);
    return out;
  }

  // --- tokens

  const Token& now() const { return tokens_[at_]; }
  bool at(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool at_symbol(std::string_view text) const { return at(TokenKind::symbol, text); }
  bool at_word(std::string_view text) const { return at(TokenKind::name, text); }
  bool at_word(Words words) const {
    return std::any_of(words.begin(), words.end(), [this](std::string_view word) { return at_word(word); });
  }
  Token next() {
    Token out = now();
    if (out.kind != TokenKind::end) ++at_;
    line_ = now().line;
    return out;
  }
  bool take(TokenKind kind, std::string_view text) {
    const bool here = at(kind, text);
    if (here) next();
    return here;
  }
  bool take_symbol(std::string_view text) { return take(TokenKind::symbol, text); }
  bool take_word(std::string_view text) { return take(TokenKind::name, text); }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    const bool tag = now().kind == TokenKind::end_output || now().kind == TokenKind::end_statement;
    const std::string found = now().kind == TokenKind::end ? "the end of the template"
                              : tag                        ? "the end of the tag"
                                                           : "'" + io::printable(now().text) + "'";
    raise_error("expected {}, got {}", wanted, found);
  }
  void expect_symbol(std::string_view text) {
    if (!take_symbol(text)) unexpected("'" + std::string(text) + "'");
  }
  void expect_word(std::string_view text) {
    if (!take_word(text)) unexpected("'" + std::string(text) + "'");
  }
  std::string expect_name() {
    if (now().kind != TokenKind::name) unexpected("a name");
    return next().text;
  }
  void end_tag() {
    if (now().kind != TokenKind::end_statement) unexpected("the end of the tag");
    next();
  }

  // --- statements

  /// Parses statements up to a tag whose first word is in `ends`. Consumes the tag's {%, but not the word.
  Node block(Words ends) {
    const Nested nested(depth_);
    Node out = make(NodeKind::block, "");
    for (;;) {
      if (now().kind == TokenKind::text) {
        std::string text = next().text;
        add(out, make(NodeKind::text, std::move(text)));
      } else if (now().kind == TokenKind::begin_output) {
        next();
        add(out, make(NodeKind::output, "", expression()));
        if (now().kind != TokenKind::end_output) unexpected("the end of the tag");
        next();
      } else if (now().kind == TokenKind::begin_statement) {
        const Token& word = tokens_[at_ + 1];
        const bool ended = word.kind == TokenKind::name && std::find(ends.begin(), ends.end(), word.text) != ends.end();
        if (ended) {
          next();
          return out;
        }
        if (word.kind == TokenKind::name &&
            (word.text.starts_with("end") || word.text == "else" || word.text == "elif")) {
          if (ends.size() == 0) return out;  // the caller, the function whole(), reports an error for this tag
          raise_error("'{}' does not end '{}'", io::printable(word.text), *(ends.end() - 1));
        }
        next();
        add(out, statement());
      } else if (ends.size() == 0) {
        return out;
      } else {
        unexpected(*(ends.end() - 1));
      }
    }
  }

  /// Parses the body of a statement and its end tag. A `break` in the body must be in a loop inside the body.
  Node closed_body(std::string_view end) {
    const Nested scope(scopes_);
    const int loops = std::exchange(loops_, 0);
    end_tag();
    Node out = block({end});
    expect_word(end);
    end_tag();
    loops_ = loops;
    return out;
  }

  Node statement() {
    const Nested nested(depth_);
    const std::string word = expect_name();
    if (word == "if") return if_else();
    if (word == "for") return for_in();
    if (word == "set") return set();
    if (word == "macro") return macro();
    if (word == "generation") return make(NodeKind::scope, "", closed_body("endgeneration"));
    if (word == "break" || word == "continue") {
      if (loops_ == 0) raise_error("'{}' outside a loop", word);
      end_tag();
      return make(word == "break" ? NodeKind::break_loop : NodeKind::continue_loop, "");
    }
    raise_error("the tag '{}' is not supported", io::printable(word));
  }

  /// Parses the part of an if statement that follows `if` or `elif`.
  Node if_else() {
    const Nested nested(depth_);
    Node test = expression(false);
    end_tag();
    Node then = block({"elif", "else", "endif"});
    Node other = make(NodeKind::block, "");
    if (take_word("elif")) {
      other = if_else();
    } else {
      if (take_word("else")) {
        end_tag();
        other = block({"endif"});
      }
      expect_word("endif");
      end_tag();
    }
    return make(NodeKind::if_else, "", std::move(test), std::move(then), std::move(other));
  }

  /// Parses the target names of an assignment or a loop: `a` or `a, b`, with or without parentheses.
  std::vector<std::string> targets() {
    const bool brackets = take_symbol("(");
    std::vector<std::string> names{expect_name()};
    while (take_symbol(",")) names.push_back(expect_name());
    if (brackets) expect_symbol(")");
    return names;
  }

  Node for_in() {
    std::vector<std::string> names = targets();
    expect_word("in");
    Node items = expression(false);
    Node filter = take_word("if") ? expression() : make(NodeKind::nothing, "");
    if (at_word("recursive")) raise_error("'recursive' loops are not supported");
    end_tag();
    const Nested scope(scopes_);
    ++loops_;
    Node body = block({"else", "endfor"});
    --loops_;
    Node other = make(NodeKind::block, "");
    if (take_word("else")) {
      end_tag();
      other = block({"endfor"});
    }
    expect_word("endfor");
    end_tag();
    Node out = make(NodeKind::for_in, "", std::move(items), std::move(filter), std::move(body), std::move(other));
    out.names = std::move(names);
    return out;
  }

  Node set() {
    std::vector<std::string> names = targets();
    std::string attribute = names.size() == 1 && take_symbol(".") ? expect_name() : "";
    Node out = make(NodeKind::set, std::move(attribute));
    if (take_symbol("=")) {
      Node value = expression();
      if (at_symbol(",")) value = rest_of_list(std::move(value), {});
      add(out, std::move(value));
      end_tag();
    } else {
      out.kind = NodeKind::set_block;
      add(out, filters(make(NodeKind::captured, "")));
      add(out, closed_body("endset"));
    }
    out.names = std::move(names);
    return out;
  }

  Node macro() {
    if (scopes_ > 0) raise_error("a macro inside a loop or a macro is not supported");
    Node out = make(NodeKind::macro, expect_name());
    std::vector<Node> defaults;
    expect_symbol("(");
    while (!take_symbol(")")) {
      if (!out.names.empty()) expect_symbol(",");
      out.names.push_back(expect_name());
      if (take_symbol("=")) {
        defaults.push_back(expression());
      } else if (!defaults.empty()) {
        raise_error("a parameter without a default follows one with a default");
      }
    }
    add(out, closed_body("endmacro"));
    for (Node& value : defaults) add(out, std::move(value));
    return out;
  }

  // --- expressions, in ascending order of precedence

  /// Parses an expression. `with_if` permits the form `a if b else c`.
  Node expression(bool with_if = true) {
    const Nested nested(depth_);
    Node out = either();
    while (with_if && take_word("if")) {
      Node test = either();
      Node other = take_word("else") ? expression() : make(NodeKind::nothing, "");
      out = make(NodeKind::if_value, "", std::move(out), std::move(test), std::move(other));
    }
    return out;
  }

  /// Parses operands that are joined by left-associative operators of equal precedence.
  template <class Operand>
  Node left_to_right(TokenKind kind, Words operators, const Operand& operand) {
    Node out = operand();
    while (now().kind == kind && std::find(operators.begin(), operators.end(), now().text) != operators.end()) {
      std::string name = next().text;
      out = make(NodeKind::binary, std::move(name), std::move(out), operand());
    }
    return out;
  }
  Node either() {
    return left_to_right(TokenKind::name, {"or"}, [this] { return both(); });
  }
  Node both() {
    return left_to_right(TokenKind::name, {"and"}, [this] { return negation(); });
  }
  Node negation() {
    const Nested nested(depth_);
    if (take_word("not")) return make(NodeKind::unary, "not", negation());
    return comparison();
  }
  Node comparison() {
    constexpr std::array<std::string_view, 6> kOperators{"==", "!=", "<", "<=", ">", ">="};
    Node out = make(NodeKind::compare, "", sum());
    for (;;) {
      const bool symbol = now().kind == TokenKind::symbol &&
                          std::find(kOperators.begin(), kOperators.end(), now().text) != kOperators.end();
      if (symbol || at_word("in")) {
        out.names.push_back(next().text);
      } else if (at_word("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
        next();
        next();
        out.names.emplace_back("not in");
      } else {
        break;
      }
      add(out, sum());
    }
    if (!out.names.empty()) return out;
    Node only = std::move(out.children.front());
    return only;
  }
  Node sum() {
    return left_to_right(TokenKind::symbol, {"+", "-"}, [this] { return joined(); });
  }
  Node joined() {
    Node first = product();
    if (!at_symbol("~")) return first;
    Node out = make(NodeKind::join, "", std::move(first));
    while (take_symbol("~")) add(out, product());
    return out;
  }
  Node product() {
    return left_to_right(TokenKind::symbol, {"*", "/", "//", "%"}, [this] {
      Node out = unary(true);
      if (at_symbol("**")) raise_error("the operator '**' is not supported");
      return out;
    });
  }
  Node unary(bool with_filter) {
    const Nested nested(depth_);
    if (at_symbol("-") || at_symbol("+")) {
      std::string name = next().text;
      Node out = make(NodeKind::unary, std::move(name), unary(false));
      return with_filter ? filters(std::move(out)) : out;
    }
    Node out = postfix(primary());
    return with_filter ? filters(std::move(out)) : out;
  }

  Node primary() {
    if (now().kind == TokenKind::string) {
      std::string text = next().text;
      while (now().kind == TokenKind::string) text += next().text;
      return constant(Value(std::move(text)));
    }
    if (now().kind == TokenKind::integer || now().kind == TokenKind::real) return number();
    if (now().kind == TokenKind::name) {
      if (at_word({"and", "or", "not", "in", "is", "if", "else"})) unexpected("a value");
      const std::string name = next().text;
      if (name == "true" || name == "True") return constant(Value(true));
      if (name == "false" || name == "False") return constant(Value(false));
      if (name == "none" || name == "None") return constant(Value(None{}));
      return make(NodeKind::name, name);
    }
    if (take_symbol("[")) return take_symbol("]") ? make(NodeKind::list, "") : rest_of_list(std::nullopt, "]");
    if (take_symbol("{")) return dictionary();
    if (take_symbol("(")) {
      if (take_symbol(")")) return make(NodeKind::list, "");
      Node out = expression();
      if (at_symbol(",")) return rest_of_list(std::move(out), ")");
      expect_symbol(")");
      return out;
    }
    unexpected("a value");
  }

  Node number() {
    const Token token = next();
    const char *begin = token.text.data(), *end = begin + token.text.size();
    std::int64_t whole = 0;
    double real = 0.0;
    const bool integer = token.kind == TokenKind::integer;
    const auto read = integer ? std::from_chars(begin, end, whole) : std::from_chars(begin, end, real);
    if (read.ec != std::errc()) raise_error("the number '{}' is not supported", io::printable(token.text));
    return constant(integer ? Value(whole) : Value(real));
  }

  /// Parses the elements of a list up to the bracket `end`, or up to the end of the tag if `end` is empty. `first`
  /// holds the first element if the caller has already parsed it.
  Node rest_of_list(std::optional<Node> first, std::string_view end) {
    Node out = make(NodeKind::list, "");
    const bool read = first.has_value();
    if (first) add(out, std::move(*first));
    if (!read) add(out, expression());
    while (take_symbol(",")) {
      if (end.empty() ? now().kind == TokenKind::end_statement : at_symbol(end)) break;
      add(out, expression());
    }
    if (!end.empty()) expect_symbol(end);
    return out;
  }

  Node dictionary() {
    Node out = make(NodeKind::dict, "");
    while (!take_symbol("}")) {
      if (!out.children.empty()) {
        expect_symbol(",");
        if (take_symbol("}")) break;
      }
      add(out, expression());
      expect_symbol(":");
      add(out, expression());
    }
    return out;
  }

  Node postfix(Node value) {
    for (;;) {
      if (take_symbol(".")) {
        if (now().kind == TokenKind::integer) {
          Node index = number();
          value = make(NodeKind::item, "", std::move(value), std::move(index));
        } else {
          std::string name = expect_name();
          value = make(NodeKind::attribute, std::move(name), std::move(value));
        }
      } else if (take_symbol("[")) {
        value = subscript(std::move(value));
      } else if (at_symbol("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  Node subscript(Node object) {
    const auto part = [this] { return at_symbol(":") || at_symbol("]") ? make(NodeKind::nothing, "") : expression(); };
    Node begin = part();
    if (!at_symbol(":")) {
      if (begin.kind == NodeKind::nothing) unexpected("an index");
      expect_symbol("]");
      return make(NodeKind::item, "", std::move(object), std::move(begin));
    }
    next();
    Node end = part();
    Node step = take_symbol(":") ? part() : make(NodeKind::nothing, "");
    expect_symbol("]");
    return make(NodeKind::slice, "", std::move(object), std::move(begin), std::move(end), std::move(step));
  }

  Node call(Node callee) {
    Node out = make(NodeKind::call, "", std::move(callee));
    arguments(out);
    return out;
  }

  /// Parses arguments in parentheses and adds them to `out`.
  void arguments(Node& out) {
    expect_symbol("(");
    for (bool first = true; !take_symbol(")"); first = false) {
      if (!first) {
        expect_symbol(",");
        if (take_symbol(")")) return;
      }
      if (at_symbol("*") || at_symbol("**")) raise_error("arguments from a list or a dictionary are not supported");
      const Token& following = tokens_[at_ + 1];
      if (now().kind == TokenKind::name && following.kind == TokenKind::symbol && following.text == "=") {
        out.names.push_back(next().text);
        next();
      } else if (!out.names.empty()) {
        raise_error("an argument without a name follows one with a name");
      }
      add(out, expression());
    }
  }

  /// Parses what may follow a value, any number of times: `| filter`, `is test`, or a call.
  Node filters(Node value) {
    for (;;) {
      if (take_symbol("|")) {
        value = make(NodeKind::filter, expect_name(), std::move(value));
        if (at_symbol("(")) arguments(value);
      } else if (take_word("is")) {
        value = test(std::move(value));
      } else if (at_symbol("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  Node test(Node value) {
    const bool negated = take_word("not");
    Node out = make(NodeKind::test, expect_name(), std::move(value));
    const TokenKind kind = now().kind;
    const bool word = kind == TokenKind::name && !at_word({"else", "or", "and", "is", "if", "in", "not"});
    if (at_symbol("(")) {
      arguments(out);
    } else if (word || kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real ||
               at_symbol("[") || at_symbol("{")) {
      add(out, postfix(primary()));
    }
    return negated ? make(NodeKind::unary, "not", std::move(out)) : out;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int& line_;
  int depth_ = 0, loops_ = 0, scopes_ = 0;
};

}  // namespace

Node parse(std::string_view text, int& line) {
  std::vector<Token> tokens = tokens_of(text, line);
  line = 1;
  return Parser(std::move(tokens), line).whole();
}

}  // namespace headgate::jinja
