// The build options of a graph's program: those of all launches of the step in one.
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "ops/launch_graph_ops.h"

namespace kvtrie::ops {
namespace {

using Launch = cl::LaunchRecorder::Launch;

bool is_product(const Launch& launch) { return launch.program == "matmul" || launch.program == "matmul_tensor"; }
bool is_convolution(const Launch& launch) { return launch.name == "causal_conv1d"; }

// Options of one program, each with one value.
class Options {
 public:
  // False, with the reason, when it has another value already.
  bool add(const std::string& name, const std::string& value, std::string& reason) {
    const auto [known, is_new] = values_.emplace(name, value);
    if (is_new || known->second == value) return true;
    reason = cat("kernels of the step were built with -D", name, "=", known->second, " and with ", value);
    return false;
  }

  void add_if_missing(const std::string& name, const std::string& value) { values_.emplace(name, value); }

  std::string text() const {
    std::string text;
    for (const auto& [name, value] : values_) text += cat(text.empty() ? "-D" : " -D", name, "=", value);
    return text;
  }

 private:
  std::map<std::string, std::string> values_;
};

// What an option of a kernel that is no product is called in kernels/launch_groups.cl; empty: it is not asked for.
std::optional<std::string> name_in_groups(const LaunchKernel& kernel, const std::string& option) {
  if (of_groups(kernel)) {  // attention: WARPS, PAIRED and MERGES are the same in every graph
    if (option == "TERMS") return "ATTENTION_TERMS";
    if (option == "CELL_FORMAT") return "ATTENTION_FORMAT";
    return option == "K_DIM" ? std::optional(option) : std::nullopt;
  }
  if (kernel.name == "embed") return option == "STORED" ? std::optional<std::string>("EMBED_STORED") : std::nullopt;
  return option == "OP" || option == "LANES" ? std::nullopt : std::optional(option);
}

}  // namespace

std::map<std::string, std::string> options_by_name(const Launch& launch) {
  std::map<std::string, std::string> options;
  std::istringstream flags(launch.options);
  for (std::string flag; flags >> flag;) {
    const std::size_t end = flag.find('=');
    options.emplace(flag.substr(2, end - 2), end == std::string::npos ? "1" : flag.substr(end + 1));
  }
  return options;
}

LaunchForms::Form LaunchForms::form_of(const Launch& launch) {
  Form form = options_by_name(launch);
  form.erase("GATED");
  form.erase("ROUTED");
  if (launch.program != "matmul_tensor") return form;
  Form whole = options_by_name(launch);
  whole.erase("RING_BYTES");  // one size for all
  for (const auto& [name, value] : {std::pair("TERMS", "2"), {"NORMED", "0"}, {"QKV", "0"}, {"GATED", "0"}})
    whole.emplace(name, value);
  const std::string format = whole.emplace("CELL_FORMAT", "1").first->second;
  whole.emplace("V_FORMAT", format);
  return whole;
}

LaunchForms::LaunchForms(std::span<const Launch> launches) {
  for (const Launch& launch : launches) {
    if (!is_product(launch) && !is_convolution(launch)) continue;
    std::vector<Form>& forms = is_product(launch) ? products_ : convolutions_;
    Form form = form_of(launch);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(std::move(form));
  }
}

const std::vector<LaunchForms::Form>* LaunchForms::forms_like(const Launch& launch) const {
  return is_product(launch) ? &products_ : is_convolution(launch) ? &convolutions_ : nullptr;
}

std::int32_t LaunchForms::of(const Launch& launch) const {
  const std::vector<Form>* const forms = forms_like(launch);
  if (forms == nullptr) return 0;
  return static_cast<std::int32_t>(std::find(forms->begin(), forms->end(), form_of(launch)) - forms->begin());
}

std::string name_in_graph(const Launch& launch, std::int32_t form) {
  return is_convolution(launch) && form > 0 ? cat(launch.name, "_", form) : std::string(launch.name);
}

std::optional<std::string> graph_options(std::span<const Launch> launches, std::string& reason) {
  Options options;
  const LaunchForms forms(launches);
  if (forms.products().size() > LaunchForms::kMostProducts) {
    reason = cat("the step has products of ", forms.products().size(), " forms, allowed ", LaunchForms::kMostProducts);
    return std::nullopt;
  }
  if (forms.convolutions() > LaunchForms::kMostConvolutions) {
    reason =
        cat("the step has convolutions of ", forms.convolutions(), " widths, allowed ", LaunchForms::kMostConvolutions);
    return std::nullopt;
  }
  for (const Launch& launch : launches) {
    const std::int32_t form = forms.of(launch);
    const std::string number = form > 0 ? cat("_FORM", form) : "";
    auto own = options_by_name(launch);
    if (own.contains("CELL_FORMAT")) own.emplace("V_FORMAT", own["CELL_FORMAT"]);  // as kernels/cell_format.clh has it
    for (const auto& [name, value] : own) {
      if (name == "OP" || name == "LANES") continue;  // graphs have all of the one, and 1 of the other
      const bool numbered = !is_convolution(launch) || name == "CONV_WIDTH" || name == "CONV_BLOCK";
      if (!options.add(numbered ? name + number : name, value, reason)) return std::nullopt;
    }
    options.add_if_missing(cat("WITH_", name_in_graph(launch, form)), "1");
    if (launch.name != "attend_tiles") continue;
    for (const char* with_it : {"WITH_attend_merge", "WITH_take_turned"}) options.add_if_missing(with_it, "1");
  }
  for (std::size_t form = 1; form < forms.products().size(); ++form) {  // what matmul_again.clh asks for, given or not
    for (const char* name : {"BLOCKED", "NEXT_SLICE", "AHEAD", "GATED", "ROUTED", "INTEGER", "BYTES"})
      options.add_if_missing(cat(name, "_FORM", form), "0");
  }
  options.add_if_missing("MATMUL_FORMS", cat(std::max<std::size_t>(1, forms.products().size())));
  return options.text();
}

std::optional<std::string> group_options(std::span<const Launch> launches, std::string& reason) {
  Options options;
  const LaunchForms forms(launches);
  const std::size_t count = forms.products().size();
  if (count > LaunchForms::kMostOfGroups) {
    reason = cat("the step has products of ", count, " forms, allowed ", LaunchForms::kMostOfGroups);
    return std::nullopt;
  }
  for (std::size_t form = 0; form < count; ++form)
    for (const auto& [name, value] : forms.products()[form]) options.add_if_missing(cat(name, "_FORM", form), value);
  options.add_if_missing("FORMS", cat(count));
  for (const Launch& launch : launches) {
    if (is_product(launch) || launch.program == "attention_merge") continue;
    const LaunchKernel* kernel = find_launch_kernel(launch.program, launch.name);
    options.add_if_missing(cat("WITH_", kernel->name), "1");
    for (const auto& [name, value] : options_by_name(launch)) {
      const std::optional<std::string> own = name_in_groups(*kernel, name);
      if (own && !options.add(*own, value, reason)) return std::nullopt;
    }
  }
  return options.text();
}

}  // namespace kvtrie::ops
