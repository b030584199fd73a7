// Kernels as PTX says them, ready to run: text becomes instructions with resolved operands.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

class Warp;

// What the emulator does not know, or a kernel should not have done.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where 32 lanes of a value are, 4 bytes each or 8: in the warp's registers, or the same for all warps (constants).
// Predicates have a bit a lane, at a number of their own. The last three are for mov and for addresses alone.
struct Operand {
  enum class Bank : uint8_t { kNone, kRegisters, kConstants, kPredicates, kSpecial, kFrame, kParameter };
  Bank bank = Bank::kNone;
  uint8_t lane_bytes = 4;
  bool negated = false;  // a predicate
  uint32_t at = 0;  // bytes from where the bank, or the frame, begins; of predicates and special registers a number
};

enum class Special : uint8_t {
  kThreadX,
  kThreadY,
  kThreadZ,
  kThreadsX,
  kThreadsY,
  kThreadsZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kBlocksX,
  kBlocksY,
  kBlocksZ,
  kLane,
  kWarp,
  kClock,
  kProcessor,
  kLanesBelow,
  kClusterRank,
  kClusterSize
};

// Where lanes go from an instruction.
enum class Flow : uint8_t { kNext, kBranch, kCall, kReturn, kExit };

struct Instruction {
  using Run = void (*)(Warp& warp, const Instruction& instruction, uint32_t lanes);

  Run run = nullptr;
  Flow flow = Flow::kNext;
  bool collective = false;  // all lanes of `members` at once, of the whole warp where there are none
  Operand guard, members;
  std::vector<Operand> operands;  // results first; of an address its base
  std::vector<uint8_t> groups;    // how many of them belong together, as a vector
  std::vector<int64_t> offsets;   // of addresses
  int64_t number = 0;             // what an instruction needs besides
  int target = -1;
  int line = 0;

  const Operand& operator[](size_t i) const { return operands[i]; }
};

// A run of bytes with a name.
struct Slot {
  uint32_t at = 0, bytes = 0;
};

// Addresses of shared memory: what a launch asks for begins at 0, what kernels declare here.
constexpr uint32_t kDeclaredShared = 1 << 20;

struct Function {
  std::string name;
  std::vector<Instruction> code;    // functions that are called first, then the kernel
  std::vector<std::string> lines;   // for messages
  std::vector<uint64_t> constants;  // lanes of them
  int first = 0;                    // instruction
  uint32_t register_bytes = 0;      // of a warp
  uint32_t predicates = 0;
  uint32_t frame_bytes = 0;   // of a lane: local memory, parameters of functions
  uint32_t shared_bytes = 0;  // declared
  std::vector<Slot> parameters;
  uint32_t parameter_bytes = 0;
};

// The PTX of one object file.
class Module {
 public:
  explicit Module(std::string text) : text_(std::move(text)) {}
  // Parsed when it is first asked for. Null where there is none of the name.
  const Function* entry(const std::string& name);
  // A variable in global memory, likewise.
  uint8_t* variable(const std::string& name);
  // What it is for: 80, 90, ...
  int architecture() const;
  // [begin, end) of all of them.
  bool has_memory(const uint8_t* begin, const uint8_t* end);

 private:
  friend class Parser;
  struct Variable {
    std::unique_ptr<uint64_t[]> memory;
    size_t bytes;
    uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory.get()); }
  };
  void index();
  void add_variable(class Tokens& tokens);

  std::string text_;
  bool indexed_ = false;
  std::map<std::string, size_t> places_;  // of entries and functions, in the text
  std::map<std::string, Variable> variables_;
  std::string dynamic_shared_;          // the name that kernels have for what a launch asks for
  std::map<std::string, Slot> shared_;  // of all that use it: how much; `at` is the alignment
  std::map<std::string, std::unique_ptr<Function>> entries_;
};

// A mnemonic in its parts, "add.rn.f32".
struct Mnemonic {
  std::vector<std::string> parts;

  explicit Mnemonic(std::string_view word);
  bool has(std::string_view part) const;
  const std::string& name() const { return parts.front(); }
  const std::string& last() const { return parts.back(); }
  const std::string& before_last() const { return parts[parts.size() - 2]; }
};

// Sets what the instruction does; its operands are there.
void decode(const Mnemonic& mnemonic, Instruction& instruction);
// Moves bytes of the lane's frame.
Instruction copy_slot(const Slot& to, const Slot& from);

}  // namespace emulator
