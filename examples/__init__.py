"""Programs that show jaxmono at work: `examples.embed` is the demo."""
