#include "kernels/kernel_table.hpp"

#include <cstdlib>
#include <stdexcept>

namespace mpips {
namespace {

constexpr const char* variable = "MPIPS_KERNELS";

// Return the tables that can run, scalar first. The compiler's runtime reads CPUID and checks that
// the OS saves the registers.
std::vector<const KernelTable*> find_tables() {
  std::vector<const KernelTable*> tables{&scalar_kernels};
#if MPIPS_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) tables.push_back(&avx2_kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    tables.push_back(&avx512_kernels);
#endif
  return tables;
}

const std::vector<const KernelTable*>& tables() {
  static const std::vector<const KernelTable*> found = find_tables();
  return found;
}

const KernelTable* find(const std::string& name) {
  for (const KernelTable* table : tables())
    if (name == table->name) return table;
  return nullptr;
}

std::string unavailable(const std::string& what, const std::string& name) {
  std::string names;
  for (const KernelTable* table : tables()) {
    if (!names.empty()) names += ", ";
    names += table->name;
  }
  return what + " = '" + name + "': must be an instruction set of this machine: " + names;
}

struct Choice {
  const KernelTable* table;
  std::string error;  // empty if MPIPS_KERNELS is unset or names an available table
};

Choice choose() {
  const char* forced = std::getenv(variable);
  if (forced == nullptr || *forced == '\0') return {tables().back(), {}};
  const KernelTable* table = find(forced);
  if (table != nullptr) return {table, {}};
  return {tables().back(), unavailable(variable, forced)};
}

const Choice& choice() {
  static const Choice made = choose();
  return made;
}

}  // namespace

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const KernelTable* table : tables()) names.emplace_back(table->name);
  return names;
}

const KernelTable& kernels() noexcept { return *choice().table; }

const KernelTable& select_kernels(const char* name) {
  if (name == nullptr) {
    if (!choice().error.empty()) throw std::invalid_argument(choice().error);
    return *choice().table;
  }
  const KernelTable* table = find(name);
  if (table == nullptr) throw std::invalid_argument(unavailable("kernels", name));
  return *table;
}

}  // namespace mpips
