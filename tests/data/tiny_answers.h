/* From the recorded greedy answers of the reference implementation, in fp32, on this model: {messages, thinking, answer, reasoning} */
{"[{\"role\":\"user\",\"content\":\"Hello!\"}]", -1, "Hello! How can I help you?", ""},
{"[{\"role\":\"user\",\"content\":\"Add 19 and 0.\"}]", -1, "19", ""},
{"[{\"role\":\"user\",\"content\":\"Add 1 and 4.\"}]", 1, "\n\n5", "1 + 4 + 0 = 5, write 5, carry 0\n"},
{"[{\"role\":\"user\",\"content\":\"What is 45 + 5?\"}]", 1, "\n\n50", "5 + 5 + 0 = 10, write 0, carry 1\n4 + 0 + 1 = 5, write 5, carry 0\n"},
{"[{\"role\":\"user\",\"content\":\"Which is larger, 825 or 470?\"}]", -1, "825", ""},
{"[{\"role\":\"user\",\"content\":\"Sort these numbers: 83, 23, 66\"}]", -1, "23, 66, 83", ""},
{"[{\"role\":\"user\",\"content\":\"Repeat after me: need bowl conquest\"}]", -1, "need bowl conquest", ""},
