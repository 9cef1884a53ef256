import js from "@eslint/js";

export default [
  { ignores: ["**/*.built.js"] },
  js.configs.recommended,
  {
    rules: {
      "no-undef": "off", // tsc knows the browser's names
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
