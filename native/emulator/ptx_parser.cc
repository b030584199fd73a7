// From the text of PTX to instructions. What is parsed is what compilers write, not all that the language has.
#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <optional>

#include "ptx.h"

namespace emulator {

// Words, numbers and signs, one after the other; white space and comments are passed over.
class Tokens {
 public:
  Tokens(const std::string& text, size_t at) : text_(text), at_(at) { next(); }

  size_t place() const { return begin_; }
  bool done() const { return token_.empty(); }
  bool is(std::string_view token) const { return token_ == token; }
  char front() const { return token_.empty() ? '\0' : token_.front(); }
  std::string next() {
    const std::string token(token_);
    pass_over_space();
    begin_ = at_;
    if (at_ < text_.size()) pass_over_token();
    token_ = std::string_view(text_).substr(begin_, at_ - begin_);
    return token;
  }
  uint32_t count() { return static_cast<uint32_t>(std::stoul(next())); }
  bool accept(std::string_view token) {
    if (token_ != token) return false;
    next();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("'" + std::string(token) + "' expected");
  }
  // Behind the '}' of the '{' that comes next.
  void pass_over_block() {
    at_ = text_.find('{', begin_);
    int depth = 0;
    do {
      depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
      ++at_;
    } while (depth > 0);
    next();
  }
  // The line that the next token is on.
  std::string line() const {
    const size_t begin = text_.rfind('\n', begin_) + 1;
    return text_.substr(begin, text_.find('\n', begin_) - begin);
  }
  [[noreturn]] void fail(const std::string& what) const { throw Fault("PTX: " + what + " in: " + line()); }

 private:
  void pass_over_space() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
      if (text_.compare(at_, 2, "//") != 0) return;
      at_ = std::min(text_.find('\n', at_), text_.size());
    }
  }
  void pass_over_token() {
    const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_$%.", c); };
    if (text_[at_] == '"') {
      at_ = text_.find('"', at_ + 1) + 1;
    } else if (!in_word(text_[at_])) {
      ++at_;
    } else {
      while (at_ < text_.size() && text_[at_] != '\0') {
        if (in_word(text_[at_])) {
          ++at_;
        } else if (text_.compare(at_, 2, "::") == 0) {  // shared::cta
          at_ += 2;
        } else {
          return;
        }
      }
    }
  }

  const std::string& text_;
  size_t at_, begin_ = 0;
  std::string_view token_;
};

namespace {

// "b32", "f16x2"; 0 of predicates.
uint32_t type_bytes(const std::string& type) {
  if (type == "pred") return 0;
  const uint32_t bits = static_cast<uint32_t>(std::stoul(type.substr(type.find_first_of("123456789"))));
  return bits / 8 * (type.ends_with("x2") ? 2 : 1);
}

uint32_t aligned(uint32_t at, uint32_t alignment) { return (at + alignment - 1) / alignment * alignment; }

std::optional<Special> special_register(const std::string& word) {
  static const std::map<std::string, Special> specials = {{"%tid.x", Special::kThreadX},
                                                          {"%tid.y", Special::kThreadY},
                                                          {"%tid.z", Special::kThreadZ},
                                                          {"%ntid.x", Special::kThreadsX},
                                                          {"%ntid.y", Special::kThreadsY},
                                                          {"%ntid.z", Special::kThreadsZ},
                                                          {"%ctaid.x", Special::kBlockX},
                                                          {"%ctaid.y", Special::kBlockY},
                                                          {"%ctaid.z", Special::kBlockZ},
                                                          {"%nctaid.x", Special::kBlocksX},
                                                          {"%nctaid.y", Special::kBlocksY},
                                                          {"%nctaid.z", Special::kBlocksZ},
                                                          {"%laneid", Special::kLane},
                                                          {"%warpid", Special::kWarp},
                                                          {"%clock", Special::kClock},
                                                          {"%clock64", Special::kClock},
                                                          {"%globaltimer", Special::kClock},
                                                          {"%smid", Special::kProcessor},
                                                          {"%lanemask_lt", Special::kLanesBelow},
                                                          {"%cluster_ctarank", Special::kClusterRank},
                                                          {"%cluster_nctarank", Special::kClusterSize}};
  const auto found = specials.find(word);
  return found == specials.end() ? std::nullopt : std::optional(found->second);
}

// The bits of a number; floats are 0f and 0d with their hexadecimal digits.
std::optional<uint64_t> number(const std::string& word) {
  if (!std::isdigit(static_cast<unsigned char>(word.front()))) return std::nullopt;
  if (word.size() > 2 && word[0] == '0' && std::strchr("fFdD", word[1]))
    return std::stoull(word.substr(2), nullptr, 16);
  if (word.find('.') != std::string::npos) return std::bit_cast<uint32_t>(std::stof(word));  // of inline assembly
  return std::stoull(word, nullptr, 0);  // it may have a U behind it
}

// ".align 8 .b8 name[16]": what is declared.
struct Declared {
  std::string name;
  uint32_t each, bytes, alignment;

  explicit Declared(Tokens& tokens) : each(1), alignment(1) {
    static const std::set<std::string> others = {".ptr", ".global", ".shared", ".const", ".local"};
    std::string word = tokens.next();
    for (; word.front() == '.'; word = tokens.next()) {
      if (word == ".align") {
        alignment = tokens.count();
      } else if (others.count(word) == 0) {
        each = type_bytes(word.substr(1));
      }
    }
    name = word;
    bytes = each;
    alignment = std::max(alignment, each);
    while (tokens.accept("[")) {
      bytes = tokens.is("]") ? 0 : bytes * tokens.count();
      tokens.expect("]");
    }
  }
};

}  // namespace

Mnemonic::Mnemonic(std::string_view word) {
  for (size_t from = 0; from <= word.size();) {
    const size_t dot = std::min(word.find('.', from), word.size());
    parts.emplace_back(word.substr(from, dot - from));
    from = dot + 1;
  }
}

bool Mnemonic::has(std::string_view part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }

// One kernel, and the functions that it calls.
class Parser {
 public:
  Parser(Module& module, const std::string& entry) : module_(module), function_(std::make_unique<Function>()) {
    function_->name = entry;
  }

  std::unique_ptr<Function> parse() {
    // Lanes that are in a function come back to others that are not: these have higher places in the code.
    add_with_callees(function_->name);
    for (const std::string& name : order_) parse_function(name);
    function_->code.emplace_back().flow = Flow::kExit;
    return std::move(function_);
  }

 private:
  struct Registers {
    uint32_t bytes, first, count;
  };
  // What braces hide: registers by their name, or the beginning of many names; slots of frames; labels.
  struct Scope {
    std::map<std::string, Registers> registers;
    std::map<std::string, Slot> slots;
    std::map<std::string, int> labels;
  };
  struct Formal {
    std::vector<Slot> parameters, results;
  };

  void add_with_callees(const std::string& name) {
    if (std::find(order_.begin(), order_.end(), name) != order_.end()) return;
    Tokens tokens(module_.text_, module_.places_.at(name));
    const size_t begin = tokens.place();
    tokens.pass_over_block();
    const std::string body = module_.text_.substr(begin, tokens.place() - begin);
    for (size_t call = body.find("call"); call != std::string::npos; call = body.find("call", call + 1)) {
      const std::string statement = body.substr(call, body.find(';', call) - call);
      for (const auto& [callee, place] : module_.places_) {
        if (callee != name && statement.find(callee) != std::string::npos) add_with_callees(callee);
      }
    }
    order_.push_back(name);
  }

  Slot frame_slot(const Declared& declared) {
    const uint32_t at = aligned(function_->frame_bytes, std::max(declared.alignment, 16u));
    function_->frame_bytes = at + declared.bytes;
    return scopes_.back().slots[declared.name] = {at, declared.bytes};
  }

  Slot kernel_slot(const Declared& declared) {
    const uint32_t at = aligned(function_->parameter_bytes, declared.alignment);
    function_->parameter_bytes = at + declared.bytes;
    function_->parameters.push_back({at, declared.bytes});
    return kernel_slots_[declared.name] = {at, declared.bytes};
  }

  std::vector<Slot> formals(Tokens& tokens, bool kernel) {
    std::vector<Slot> slots;
    tokens.expect("(");
    while (!tokens.accept(")")) {
      tokens.accept(",");
      tokens.expect(".param");
      const Declared declared(tokens);
      slots.push_back(kernel ? kernel_slot(declared) : frame_slot(declared));
    }
    return slots;
  }

  void parse_function(const std::string& name) {
    const bool kernel = name == function_->name;
    Tokens tokens(module_.text_, module_.places_.at(name));
    scopes_.assign(1, {});
    Formal& formal = formals_[name];
    while (!tokens.is(name)) {
      if (tokens.is("(")) {
        formal.results = formals(tokens, false);
      } else {
        tokens.next();
      }
    }
    tokens.next();
    if (tokens.is("(")) formal.parameters = formals(tokens, kernel);
    while (!tokens.is("{")) tokens.next();  // limits of its launches
    tokens.next();
    starts_[name] = function_->first = static_cast<int>(function_->code.size());
    while (!scopes_.empty()) {
      if (tokens.accept("{")) {
        scopes_.emplace_back();
      } else if (tokens.accept("}")) {
        settle_labels();
        scopes_.pop_back();
      } else {
        statement(tokens);
      }
    }
    if (!branches_.empty()) tokens.fail("no label " + branches_.front().second);
  }

  // Of branches to the innermost scope's.
  void settle_labels() {
    const auto settled = [&](const auto& branch) {
      const auto label = scopes_.back().labels.find(branch.second);
      if (label == scopes_.back().labels.end()) return false;
      function_->code[branch.first].target = label->second;
      return true;
    };
    branches_.erase(std::remove_if(branches_.begin(), branches_.end(), settled), branches_.end());
  }

  void statement(Tokens& tokens) {
    if (tokens.accept(";")) return;
    if (tokens.accept(".reg")) return registers(tokens);
    if (tokens.accept(".shared")) {
      const Declared declared(tokens);
      shared(declared.name, declared.bytes, declared.alignment);
      return tokens.expect(";");
    }
    if (tokens.is(".local") || tokens.is(".param")) {
      tokens.next();
      frame_slot(Declared(tokens));
      return tokens.expect(";");
    }
    if (tokens.front() == '.') {  // .pragma, .loc
      while (!tokens.accept(";")) tokens.next();
      return;
    }
    Instruction instruction;
    const std::string line = tokens.line();
    if (tokens.accept("@")) {
      const bool negated = tokens.accept("!");
      instruction.guard = register_of(tokens, tokens.next());
      instruction.guard.negated = negated;
    }
    const std::string word = tokens.next();
    if (tokens.accept(":")) {
      scopes_.back().labels[word] = static_cast<int>(function_->code.size());
      return;
    }
    instruction.line = static_cast<int>(function_->lines.size());
    function_->lines.push_back(line);
    const Mnemonic mnemonic(word);
    if (mnemonic.name() == "call") return call(tokens);
    if (mnemonic.name() == "bra") {
      instruction.flow = Flow::kBranch;
      branches_.emplace_back(function_->code.size(), tokens.next());
    } else {
      while (!tokens.is(";")) {
        if (!tokens.accept(",")) operand(tokens, mnemonic, instruction);
      }
      try {
        decode(mnemonic, instruction);
      } catch (const Fault& fault) {
        throw Fault(std::string(fault.what()) + " in: " + line);
      }
    }
    tokens.expect(";");
    function_->code.push_back(std::move(instruction));
  }

  uint32_t shared(const std::string& name, uint32_t bytes, uint32_t alignment) {
    const uint32_t at = aligned(function_->shared_bytes, std::max(alignment, 16u));
    function_->shared_bytes = at + bytes;
    return shared_[name] = kDeclaredShared + at;
  }

  void registers(Tokens& tokens) {
    const uint32_t bytes = type_bytes(tokens.next().substr(1));
    do {
      const std::string name = tokens.next();
      Registers made = {bytes, 0, 1};
      const bool many = tokens.accept("<");
      if (many) {
        made.count = tokens.count();
        tokens.expect(">");
      }
      uint32_t& end = bytes == 0 ? function_->predicates : function_->register_bytes;
      made.first = end;
      end += made.count * (bytes == 0 ? 1 : 32 * lane_bytes(bytes));
      scopes_.back().registers[many ? name + "<" : name] = made;
    } while (tokens.accept(","));
    tokens.expect(";");
  }

  static uint8_t lane_bytes(uint32_t bytes) { return bytes > 4 ? 8 : 4; }

  // Arguments go to where the function has them, and its results come back, in the lanes' frames.
  void call(Tokens& tokens) {
    const auto list = [&] {
      std::vector<Slot> slots;
      while (!tokens.accept(")")) {
        if (!tokens.accept(",")) slots.push_back(*slot(tokens.next()));
      }
      return slots;
    };
    std::vector<Slot> results, arguments;
    if (tokens.accept("(")) {
      results = list();
      tokens.expect(",");
    }
    const std::string callee = tokens.next();
    if (tokens.accept(",")) {
      tokens.expect("(");
      arguments = list();
    }
    tokens.expect(";");
    if (starts_.count(callee) == 0) tokens.fail("a call of what is not there, or of itself,");
    const Formal& formal = formals_.at(callee);
    for (size_t i = 0; i < arguments.size(); ++i) add(copy_slot(formal.parameters.at(i), arguments[i]));
    Instruction instruction;
    instruction.flow = Flow::kCall;
    instruction.target = starts_.at(callee);
    add(std::move(instruction));
    for (size_t i = 0; i < results.size(); ++i) add(copy_slot(results[i], formal.results.at(i)));
  }

  // Of the line that was read last.
  void add(Instruction instruction) {
    instruction.line = static_cast<int>(function_->lines.size()) - 1;
    function_->code.push_back(std::move(instruction));
  }

  std::optional<Slot> slot(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->slots.find(name); found != scope->slots.end()) return found->second;
    }
    return std::nullopt;
  }

  // kNone where it is none.
  Operand register_of(Tokens& tokens, const std::string& name) const {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      uint32_t index = 0;
      auto found = scope->registers.find(name);
      if (found == scope->registers.end() && digits < name.size()) {
        found = scope->registers.find(name.substr(0, digits) + "<");
        index = static_cast<uint32_t>(std::stoul(name.substr(digits)));
      }
      if (found == scope->registers.end()) continue;
      const Registers& made = found->second;
      if (index >= made.count) tokens.fail("no register " + name);
      if (made.bytes == 0) return {Operand::Bank::kPredicates, 0, false, made.first + index};
      const uint8_t lane = lane_bytes(made.bytes);
      return {Operand::Bank::kRegisters, lane, false, made.first + 32 * lane * index};
    }
    return {};
  }

  Operand constant(uint64_t bits, uint32_t bytes) {
    const uint8_t lane = lane_bytes(bytes);
    const uint64_t word = lane == 8 ? bits : bits << 32 | (bits & 0xffffffff);
    const auto [found, added] = constants_.try_emplace({word, lane});
    if (added) {
      const auto at = static_cast<uint32_t>(function_->constants.size() * sizeof(uint64_t));
      function_->constants.insert(function_->constants.end(), 4 * lane, word);
      found->second = {Operand::Bank::kConstants, lane, false, at};
    }
    return found->second;
  }

  // Of a number in an instruction, behind so many operands: as its last type says, but for how far, where and how
  // often.
  static uint32_t number_bytes(const Mnemonic& mnemonic, size_t before) {
    static const std::map<std::string, size_t> counts = {
        {"shl", 2}, {"shr", 2}, {"bfi", 3}, {"bfe", 2}, {"mbarrier", 0}};
    if (const auto found = counts.find(mnemonic.name()); found != counts.end() && before >= found->second) return 4;
    for (auto part = mnemonic.parts.rbegin(); part != mnemonic.parts.rend(); ++part) {
      const bool typed = part->size() >= 2 && std::strchr("bsuf", part->front()) != nullptr;
      if (typed && std::isdigit(static_cast<unsigned char>((*part)[1]))) return type_bytes(*part);
    }
    return 4;
  }

  void operand(Tokens& tokens, const Mnemonic& mnemonic, Instruction& instruction) {
    const size_t before = instruction.operands.size();
    if (tokens.accept("{")) {
      while (!tokens.accept("}")) {
        if (!tokens.accept(",")) instruction.operands.push_back(value(tokens, mnemonic, instruction.operands.size()));
      }
    } else if (tokens.accept("[")) {
      address(tokens, instruction);
      tokens.expect("]");
    } else {
      instruction.operands.push_back(value(tokens, mnemonic, instruction.operands.size()));
      if (tokens.accept("|"))
        instruction.operands.push_back(value(tokens, mnemonic, instruction.operands.size()));  // another result
    }
    instruction.groups.push_back(static_cast<uint8_t>(instruction.operands.size() - before));
  }

  Operand value(Tokens& tokens, const Mnemonic& mnemonic, size_t before) {
    const bool negated = tokens.accept("!"), minus = tokens.accept("-");
    const std::string word = tokens.next();
    if (word == "_") return {};
    const uint32_t bytes = number_bytes(mnemonic, before);
    if (const auto bits = number(word)) return constant(minus ? 0 - *bits : *bits, bytes);
    if (const auto special = special_register(word)) {
      return {Operand::Bank::kSpecial, 4, false, static_cast<uint32_t>(*special)};
    }
    Operand found = register_of(tokens, word);
    found.negated = negated;
    return found.bank != Operand::Bank::kNone ? found : memory(tokens, word, bytes);
  }

  // The address of what has that name.
  Operand memory(Tokens& tokens, const std::string& word, uint32_t bytes) {
    if (const auto found = slot(word)) return {Operand::Bank::kFrame, 8, false, found->at};
    if (const auto found = kernel_slots_.find(word); found != kernel_slots_.end()) {
      return {Operand::Bank::kParameter, 8, false, found->second.at};
    }
    if (const auto found = shared_.find(word); found != shared_.end()) return constant(found->second, bytes);
    if (word == module_.dynamic_shared_) return constant(0, bytes);
    if (const auto found = module_.shared_.find(word); found != module_.shared_.end()) {
      return constant(shared(word, found->second.bytes, found->second.at), bytes);
    }
    if (uint8_t* variable = module_.variable(word)) return constant(reinterpret_cast<uint64_t>(variable), bytes);
    tokens.fail("what is " + word + "?");
  }

  void address(Tokens& tokens, Instruction& instruction) {
    const std::string word = tokens.next();
    const Operand base = register_of(tokens, word);
    instruction.operands.push_back(base.bank != Operand::Bank::kNone ? base : memory(tokens, word, 8));
    int64_t distance = 0;
    if (tokens.accept("+")) {
      const bool minus = tokens.accept("-");
      distance = static_cast<int64_t>(*number(tokens.next()));
      if (minus) distance = -distance;
    }
    instruction.offsets.push_back(distance);
  }

  Module& module_;
  std::unique_ptr<Function> function_;
  std::vector<std::string> order_;
  std::map<std::string, int> starts_;
  std::map<std::string, Formal> formals_;
  std::map<std::string, Slot> kernel_slots_;
  std::map<std::string, uint32_t> shared_;
  std::vector<Scope> scopes_;
  std::vector<std::pair<size_t, std::string>> branches_;  // whose label is not known yet
  std::map<std::pair<uint64_t, uint8_t>, Operand> constants_;
};

void Module::index() {
  if (indexed_) return;
  indexed_ = true;
  Tokens tokens(text_, 0);
  while (!tokens.done()) {
    const size_t place = tokens.place();
    const std::string word = tokens.next();
    if (word == ".entry" || word == ".func") {
      if (tokens.accept("(")) {
        while (!tokens.accept(")")) tokens.next();
      }
      const std::string name = tokens.next();
      while (!tokens.is("{") && !tokens.is(";")) tokens.next();
      if (!tokens.is("{")) continue;
      places_[name] = place;
      tokens.pass_over_block();
    } else if (word == ".extern" && tokens.accept(".shared")) {
      dynamic_shared_ = Declared(tokens).name;
    } else if (word == ".shared") {
      const Declared declared(tokens);
      shared_[declared.name] = {declared.alignment, declared.bytes};
    } else if (word == ".global" || word == ".const") {
      add_variable(tokens);
    }
  }
}

void Module::add_variable(Tokens& tokens) {
  const Declared declared(tokens);
  Variable variable = {std::make_unique<uint64_t[]>(declared.bytes / sizeof(uint64_t) + 1), declared.bytes};
  if (tokens.accept("=")) {
    uint8_t* at = variable.data();
    tokens.accept("{");
    do {
      if (tokens.is("}")) break;
      const bool minus = tokens.accept("-");
      const uint64_t bits = *number(tokens.next());
      const uint64_t signed_bits = minus ? 0 - bits : bits;
      std::memcpy(at, &signed_bits, declared.each);
      at += declared.each;
    } while (tokens.accept(","));
  }
  variables_[declared.name] = std::move(variable);
}

const Function* Module::entry(const std::string& name) {
  index();
  auto& entry = entries_[name];
  if (!entry && places_.count(name) != 0) entry = Parser(*this, name).parse();
  return entry.get();
}

int Module::architecture() const {
  static const std::string kTarget = ".target sm_";
  const size_t at = text_.find(kTarget);
  if (at == std::string::npos) throw Fault("PTX that does not say what it is for");
  return std::stoi(text_.substr(at + kTarget.size()));
}

uint8_t* Module::variable(const std::string& name) {
  index();
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : found->second.data();
}

bool Module::has_memory(const uint8_t* begin, const uint8_t* end) {
  return std::any_of(variables_.begin(), variables_.end(), [&](const auto& each) {
    const uint8_t* const data = each.second.data();
    return begin >= data && end <= data + each.second.bytes;
  });
}

}  // namespace emulator
